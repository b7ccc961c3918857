"""Microscaled number formats and FP4 training recipes for PyTorch, computed by the microscale library.

    import microscale_torch as ms
    model = ms.convert(model, "ue5m3")      # then train as before

docs/pytorch.md says what each part does.
"""

from microscale_torch.convert import Position, convert, position_of
from microscale_torch.graph import GraphedStep
from microscale_torch.linear import Clock, Linear
from microscale_torch.ops import (
    Quantized,
    amax,
    dequantize,
    fake_quantize,
    gemm,
    hadamard,
    quantize,
    recipes,
)

__all__ = [
    "Clock",
    "GraphedStep",
    "Linear",
    "Position",
    "Quantized",
    "amax",
    "convert",
    "dequantize",
    "fake_quantize",
    "gemm",
    "hadamard",
    "position_of",
    "quantize",
    "recipes",
]
