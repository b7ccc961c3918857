"""ml_dtypes, the scalar types of JAX and NumPy: every code, and FP32 and FP64 numbers at every decision point."""
import sys

import ml_dtypes
import numpy as np

import peers

TYPES = {
    'e2m1': ml_dtypes.float4_e2m1fn, 'e2m3': ml_dtypes.float6_e2m3fn, 'e3m2': ml_dtypes.float6_e3m2fn,
    'e4m3': ml_dtypes.float8_e4m3fn, 'e5m2': ml_dtypes.float8_e5m2, 'e8m0': ml_dtypes.float8_e8m0fnu,
    'bf16': ml_dtypes.bfloat16, 'f16': np.float16,
}


def storage(name):
    return np.uint16 if peers.FORMATS[name][0] == 16 else np.uint8


def half_nan(x):
    """The code that NumPy makes of a NaN: the upper bits of its payload, one more where they are zero."""
    bits = x.view(np.uint32)
    payload = (bits & 0x7FFFFF) >> 13
    return (bits >> 16 & 0x8000) | 0x7C00 | np.where(payload == 0, 1, payload)


def known(name, x):
    """Where ml_dtypes differs from `encode` with overflow::ieee, and what it gives there."""
    top_bit = 1 << (peers.FORMATS[name][0] - 1)
    sign = np.where(np.signbit(x), top_bit, 0)
    nan = np.isnan(x)
    if name in ('e2m1', 'e2m3', 'e3m2'):
        yield 'NaN is zero of the other sign in formats without NaN', nan, sign ^ top_bit
    elif name == 'e5m2':
        yield 'NaN has the code 7E', nan, 0x7E | sign
    elif name == 'bf16':
        yield 'NaN has the code 7FC0', nan, 0x7FC0 | sign
    elif name == 'f16':
        yield 'NaN keeps its payload', nan, half_nan(x)
    elif name == 'e8m0':
        yield 'zero, negative numbers and infinities are NaN', ~nan & ((x <= 0) | np.isinf(x)), 0xFF
        yield 'what lies between 2^-127 and 1.5 2^-127 is rounded up', (x > 2.0 ** -127) & (x < 1.5 * 2.0 ** -127), 1


def main(library):
    ledger = peers.Ledger()
    for name, dtype in TYPES.items():
        codes = peers.all_codes(name)
        theirs = codes.astype(storage(name)).view(dtype).astype(np.float32)
        ledger.bits(name + ' decoded', codes, library.decode(name, codes), theirs)
        x = peers.inputs(library, name)
        with np.errstate(all='ignore'):
            theirs = x.astype(dtype).view(storage(name))
        ledger.bits(name + ' of FP32', x, library.encode(name, x, ieee=True), theirs, list(known(name, x)))
        if name == 'f16':
            continue  # NumPy's, whose FP64 conversion rounds once
        # FP64: what lies next to a number in FP64 alone. It is rounded to FP32 first, which moves it onto a tie.
        wide = x[np.isfinite(x) & (x > 0)].astype(np.float64) * (1 + 2.0 ** -40)
        theirs = wide.astype(dtype).view(storage(name))
        narrow = wide.astype(np.float32)
        twice = narrow.astype(dtype).view(storage(name))
        ours = library.encode(name, wide, ieee=True)
        first = ('FP64 is rounded to FP32 first', library.encode(name, narrow, ieee=True) != ours, twice)
        ledger.bits(name + ' of FP64', wide, ours, theirs, [k for k in [first, *known(name, narrow)] if k[1].any()])
    return ledger.done('ml_dtypes ' + ml_dtypes.__version__)


if __name__ == '__main__':
    sys.exit(main(peers.Library(sys.argv[1])))
