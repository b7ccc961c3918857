"""torch's narrow types on the CPU, and torchao's whole schemes: MX under four scale rules and NVFP4 with two levels."""
import os
import sys
import warnings

# The wheel links CUDA's libraries, which CPU code never calls; see run.
sys.setdlopenflags(os.RTLD_LAZY)
warnings.simplefilter('ignore')

import logging  # noqa: E402

logging.disable(logging.WARNING)

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torchao  # noqa: E402
from torchao.prototype.mx_formats.config import ScaleCalculationMode  # noqa: E402
from torchao.prototype.mx_formats.constants import DTYPE_FP6_E2M3, DTYPE_FP6_E3M2  # noqa: E402
from torchao.prototype.mx_formats.mx_tensor import to_mx  # noqa: E402
from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize, per_tensor_amax_to_scale  # noqa: E402

import peers  # noqa: E402

TYPES = {'e4m3': torch.float8_e4m3fn, 'e5m2': torch.float8_e5m2, 'e8m0': torch.float8_e8m0fnu, 'bf16': torch.bfloat16,
         'f16': torch.float16}
SCHEMES = {
    'mxfp4': ('e2m1', torch.float4_e2m1fn_x2, 'FLOOR'), 'mxfp4_even': ('e2m1', torch.float4_e2m1fn_x2, 'EVEN'),
    'mxfp4_ceil': ('e2m1', torch.float4_e2m1fn_x2, 'RCEIL'), 'mxfp6_e2m3': ('e2m3', DTYPE_FP6_E2M3, 'FLOOR'),
    'mxfp6_e3m2': ('e3m2', DTYPE_FP6_E3M2, 'FLOOR'), 'mxfp8_e4m3': ('e4m3', torch.float8_e4m3fn, 'FLOOR'),
    'mxfp8_e5m2': ('e5m2', torch.float8_e5m2, 'FLOOR'), 'mxfp8_e4m3_ceil': ('e4m3', torch.float8_e4m3fn, 'RCEIL'),
    'mxfp8_e5m2_ceil': ('e5m2', torch.float8_e5m2, 'RCEIL'),
}


def bits_of(tensor):
    return tensor.view(torch.uint8 if tensor.element_size() == 1 else torch.int16).numpy().view(
        np.uint8 if tensor.element_size() == 1 else np.uint16)


def unpacked(codes):
    codes = bits_of(codes)
    return np.stack([codes & 15, codes >> 4], -1).reshape(codes.shape[0], -1)


def scalars(library, ledger):
    for name, dtype in TYPES.items():
        codes = peers.all_codes(name)
        stored = torch.from_numpy(codes.astype(np.int16 if dtype.itemsize == 2 else np.uint8)).view(dtype)
        ledger.bits(name + ' decoded', codes, library.decode(name, codes), stored.to(torch.float32).numpy())
        x = peers.inputs(library, name)
        theirs = bits_of(torch.from_numpy(x).to(dtype))
        ieee = name != 'e4m3'  # which saturates, infinities included, since torch 2.12
        ledger.bits(name + ' of FP32', x, library.encode(name, x, ieee=ieee), theirs, list(known(name, x, theirs)))


def known(name, x, theirs):
    """Where a conversion differs from `encode`, and what it gives there."""
    nan, bits = np.isnan(x), x.view(np.uint32)
    if name == 'e8m0':
        field = bits >> 23 & 0xFF
        up = (bits & 0x7FFFFF) >= np.where(field > 0, 0x400000, 0x400001)
        yield 'the sign is ignored', ~nan & (x < 0), np.where(field == 0xFF, 0xFF, field + up)
        yield 'what lies between 2^-127 and 1.5 2^-127 is rounded up', (x > 2.0 ** -127) & (x < 1.5 * 2.0 ** -127), 1
    elif name in ('bf16', 'f16'):
        # The instructions and the code without them give different ones: any NaN of the format.
        infinity = 0x7F80 if name == 'bf16' else 0x7C00
        yield 'NaN has a code of the processor', nan, np.where((theirs & 0x7FFF) > infinity, theirs, infinity + 1)


def blocks(library, ledger):
    powers = np.exp2(np.arange(-40.0, 41.0))
    for scheme, (element, dtype, mode) in SCHEMES.items():
        values = library.decode(element, peers.all_codes(element))
        x = peers.adversarial_blocks(values, powers, 32, 512, 1024, 5)
        codes, scales, _, _ = library.quantize(scheme, x, 32)
        their_scales, theirs = to_mx(torch.from_numpy(x), dtype, 32, getattr(ScaleCalculationMode, mode))
        theirs = unpacked(theirs) if element == 'e2m1' else bits_of(theirs)
        known_scales, factors = [], np.exp2(127.0 - scales)
        if mode == 'RCEIL':
            # 2^ceil(log2(a / max)) with a logarithm in FP32.
            largest = values[np.isfinite(values)].max()
            amax = np.abs(x).reshape(scales.shape + (32,)).max(-1)
            with np.errstate(divide='ignore'):
                power = np.ceil(np.log2((amax / largest).astype(np.float64)).astype(np.float32))
            power = np.clip(power, -127, 127) + 127
            known_scales = [('just above a power of two, log2 rounds to an integer', power != scales, power)]
            factors = np.where(power == 0, 1.0, np.exp2(127.0 - power))
            why = 'the scale differs, or elements under scale code 00 are not scaled at all'
        else:
            factors = np.where(scales == 0, np.exp2(126.0), factors)
            why = 'elements under scale code 00 are divided by 2^-126'
        gives = library.encode(element, x * np.repeat(factors, 32, 1))  # exact in FP64
        ledger.bits(scheme + ' scales', x[:, ::32], scales, bits_of(their_scales), known_scales)
        ledger.bits(scheme, x, codes, theirs, [(why, codes != gives, gives)])
    scales = library.decode('ue4m3', np.arange(1, 0x7F))
    for seed in range(8):
        x = peers.adversarial_blocks(library.decode('e2m1', np.arange(16)), scales, 16, 128, 1024, 6 + seed)
        codes, scales_here, datum, _ = library.quantize('nvfp4_torchao', x, 16)
        g = per_tensor_amax_to_scale(torch.from_numpy(x).abs().max())
        their_scales, theirs = nvfp4_quantize(torch.from_numpy(x), 16, g)
        ledger.bits('nvfp4_torchao tensor scale', x[:1, :1], np.array([[datum]]), np.array([[g.item()]], np.float32))
        ledger.bits('nvfp4_torchao scales', x[:, ::16], scales_here, bits_of(their_scales).reshape(scales_here.shape))
        ledger.bits('nvfp4_torchao', x, codes, unpacked(theirs))


def main(library):
    ledger = peers.Ledger()
    scalars(library, ledger)
    blocks(library, ledger)
    return ledger.done('torch %s, torchao %s' % (torch.__version__, torchao.__version__))


if __name__ == '__main__':
    torch.set_num_threads(1)
    sys.exit(main(peers.Library(sys.argv[1])))
