"""The operators: what torch needs besides kernels (shapes for torch.compile, gradients), and Python forms of them."""

from dataclasses import dataclass
from functools import lru_cache

import torch

from microscale_torch import _C

recipes = _C.recipes  # the names of the recipes that this extension was built with
describe_recipe = lru_cache(maxsize=None)(_C.describe_recipe)
describe_scheme = lru_cache(maxsize=None)(_C.describe_scheme)

_ops = torch.ops.microscale


def as_word(what, number):
    """A number of 64 bits, with a sign or without, as torch takes it: with one."""
    if not isinstance(number, int) or not -(1 << 63) <= number < 1 << 64:
        raise ValueError(f"{what}: expected a whole number of 64 bits, got {number}")
    return number - (1 << 64) if number >= 1 << 63 else number


def _draws(seed, stream, scale_stream):
    words = {"seed": seed, "stream": stream, "scale_stream": scale_stream}
    return {name: as_word(name, number) for name, number in words.items()}


@dataclass
class Quantized:
    """A quantized matrix, K-major: packed codes, block scales, the tensor scale's datum (numerics.md says what)."""

    codes: torch.Tensor
    scales: torch.Tensor
    datum: torch.Tensor
    scheme: str
    depth: int  # elements in a row as stored
    columns: bool  # whether blocks ran down the columns: then this is the transpose


torch.serialization.add_safe_globals([Quantized])  # so that torch.load() takes what torch.save() wrote


def quantize(
    x, scheme, *, columns=False, rounding="nearest_even", seed=0, stream=0, scale_stream=0, reference=None, target=0
):
    """Quantizes a matrix, blocks along its rows, or down its columns: then what is stored is the transpose.

    `rounding` is `nearest_even`, `stochastic_midpoint8` or `stochastic_floor8`, whose draws come from `seed` and
    `stream`, or `with_scale_draws` for `nvfp4_ms_eden`: elements to nearest, scales drawn from `seed` and
    `scale_stream`. `reference` is the amax that the tensor scale derives from, one float on the device of x; None is
    x's own.
    """
    how = {"columns": columns, "rounding": rounding, "target": target, **_draws(seed, stream, scale_stream)}
    parts = _ops.quantize(x, scheme, reference, **how)
    return Quantized(*parts, scheme, x.size(0) if columns else x.size(1), columns)


def dequantize(q, dtype=torch.float32):
    """The values, in the orientation before quantization."""
    return _ops.dequantize(q.codes, q.scales, q.datum, q.scheme, q.depth, columns=q.columns, dtype=dtype)


def fake_quantize(
    x, scheme, *, columns=False, rounding="nearest_even", seed=0, stream=0, scale_stream=0, reference=None, target=0
):
    """What x becomes when it is quantized and decoded again; the gradient passes straight through."""
    how = {"columns": columns, "rounding": rounding, "target": target, **_draws(seed, stream, scale_stream)}
    return _ops.fake_quantize(x, scheme, reference, **how)


def gemm(a, b, accumulation="exact_f32"):
    """a b^T of two quantized matrices in FP32, by `exact_f32`, `f32_blocks`, `blackwell_k64` or `vendor`."""
    if a.depth != b.depth:
        raise ValueError(f"expected operands of one depth, got {a.depth} and {b.depth}")
    return _ops.gemm(a.codes, a.scales, a.datum, a.scheme, b.codes, b.scales, b.datum, b.scheme, a.depth, accumulation)


def hadamard(x, size=16, *, columns=False, signs=()):
    """The orthonormal Hadamard transform of runs of `size`; bit i of `signs` (64-bit words) negates element i first."""
    return _ops.hadamard(x, size, columns=columns, signs=[as_word("signs", word) for word in signs])


def amax(x):
    """The largest magnitude as a tensor of one float, NaN passed over; nothing waits for it."""
    return _ops.amax(x.reshape(1, -1) if x.dim() != 2 else x)


# ---------------------------------------------------------------------------------------------------------------
# Shapes, for tracing without data.


def _ceil_div(a, b):
    return (a + b - 1) // b


def _expect_same_device(what, tensor, like):
    if tensor is not None and tensor.device != like.device:
        raise RuntimeError(f"{what}: expected a tensor on {like.device}, got {tensor.device}")


def _empty_quantized(like, scheme, rows, cols):
    facts = describe_scheme(scheme)
    block_rows, block_columns = facts["block"]
    scale_type = torch.uint8 if facts["scale_bytes"] == 1 else torch.float32
    return (
        like.new_empty((rows, _ceil_div(cols * facts["element_bits"], 8)), dtype=torch.uint8),
        like.new_empty((_ceil_div(rows, block_rows), _ceil_div(cols, block_columns)), dtype=scale_type),
        like.new_empty((1,), dtype=torch.float32),
    )


@torch.library.register_fake("microscale::quantize")
def _(x, scheme, reference=None, *, columns=False, rounding="nearest_even", seed=0, stream=0, target=0, scale_stream=0):
    _expect_same_device("reference", reference, x)
    rows, cols = (x.size(1), x.size(0)) if columns else (x.size(0), x.size(1))
    return _empty_quantized(x, scheme, rows, cols)


@torch.library.register_fake("microscale::dequantize")
def _(codes, scales, datum, scheme, depth, *, columns=False, dtype=torch.float32):
    shape = (depth, codes.size(0)) if columns else (codes.size(0), depth)
    return codes.new_empty(shape, dtype=dtype)


@torch.library.register_fake("microscale::fake_quantize")
def _(x, scheme, reference=None, *, columns=False, rounding="nearest_even", seed=0, stream=0, target=0, scale_stream=0):
    _expect_same_device("reference", reference, x)
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@torch.library.register_fake("microscale::gemm")
def _(a_codes, a_scales, a_datum, a_scheme, b_codes, b_scales, b_datum, b_scheme, depth, accumulation="exact_f32"):
    _expect_same_device("second operand", b_codes, a_codes)
    return a_codes.new_empty((a_codes.size(0), b_codes.size(0)), dtype=torch.float32)


@torch.library.register_fake("microscale::hadamard")
def _(x, size=16, *, columns=False, signs=()):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@torch.library.register_fake("microscale::amax")
def _(x):
    return x.new_empty((1,), dtype=torch.float32)


def _empty_saved(matrix, scheme, is_vendor):
    """Shapes of what linear_forward keeps of an operand that a backward product reduces over its rows."""
    if is_vendor:
        factor = 1 if describe_scheme(scheme)["has_tensor_scale"] else 0
        return [torch.empty_like(matrix, dtype=torch.bfloat16), matrix.new_empty((factor,), dtype=torch.float32)]
    return list(_empty_quantized(matrix, scheme, matrix.size(1), matrix.size(0)))


@torch.library.register_fake("microscale::linear_forward")
def _(x, weight, references, clock, recipe, seed, layer, targets, accumulation, dtype, needs_dx, needs_dw):
    _expect_same_device("weight", weight, x)
    _expect_same_device("references", references, x)
    described, is_vendor = describe_recipe(recipe), accumulation == "vendor"
    nothing = [x.new_empty((0,), dtype=torch.float32) for _ in range(2 if is_vendor else 3)]
    saved = _empty_saved(x, described["wgrad"][1]["scheme"], is_vendor) if needs_dw else list(nothing)
    saved += _empty_saved(weight, described["dgrad"][1]["scheme"], is_vendor) if needs_dx else list(nothing)
    saved.append(torch.empty_like(clock))
    return x.new_empty((x.size(0), weight.size(0)), dtype=dtype), saved


@torch.library.register_fake("microscale::linear_backward")
def _(dy, saved, references, recipe, seed, layer, targets, accumulation, in_features, x_dtype,
      weight_dtype, needs_dx, needs_dw):  # fmt: skip
    dx_shape = (dy.size(0), in_features) if needs_dx else (0,)
    dw_shape = (dy.size(1), in_features) if needs_dw else (0,)
    return dy.new_empty(dx_shape, dtype=x_dtype), dy.new_empty(dw_shape, dtype=weight_dtype)


# ---------------------------------------------------------------------------------------------------------------
# Gradients: that of fake quantization passes straight through, a transform has its own, the others have none.

torch.library.register_autograd("microscale::fake_quantize", lambda ctx, dy: (dy, None, None))


def _keep_transform(ctx, inputs, keyword_only_inputs, output):
    ctx.size, ctx.how = inputs[1], keyword_only_inputs


def _transform_back(ctx, dy):
    """Y = H D X, with signs on the diagonal of D, so dX = D H dY."""
    columns, signs = ctx.how["columns"], ctx.how["signs"]
    dx = _ops.hadamard(dy, ctx.size, columns=columns)
    if signs:
        diagonal = [-1.0 if signs[i // 64] >> (i % 64) & 1 else 1.0 for i in range(min(ctx.size, 64 * len(signs)))]
        diagonal += [1.0] * (ctx.size - len(diagonal))
        runs = dx.size(0 if columns else 1) // ctx.size
        diagonal = torch.tensor(diagonal, dtype=dx.dtype, device=dx.device).repeat(runs)
        dx = dx * (diagonal[:, None] if columns else diagonal)
    return dx, None


torch.library.register_autograd("microscale::hadamard", _transform_back, setup_context=_keep_transform)


def _refuse_gradients(name):
    def backward(ctx, *_):
        raise RuntimeError(f"{name} has no gradient: expected fake_quantize, or a tensor that is detached")

    torch.library.register_autograd(f"microscale::{name}", backward)


for _name in ("quantize", "dequantize", "gemm", "amax"):
    _refuse_gradients(_name)
