"""gfloat, the parametric formats: every code, every rounding it shares with the library, the stochastic ones by their
random bits, and MX blocks."""
import sys

import gfloat
import numpy as np
from gfloat import RoundMode, formats

import peers

TYPES = {
    'e2m1': formats.format_info_ocp_e2m1, 'e2m3': formats.format_info_ocp_e2m3, 'e3m2': formats.format_info_ocp_e3m2,
    'e4m3': formats.format_info_ocp_e4m3, 'e5m2': formats.format_info_ocp_e5m2, 'e8m0': formats.format_info_ocp_e8m0,
    'bf16': formats.format_info_bfloat16, 'f16': formats.format_info_binary16,
}
ROUNDINGS = {
    'nearest_even': RoundMode.TiesToEven, 'toward_zero': RoundMode.TowardZero, 'toward_positive': RoundMode.TowardPositive,
    'toward_negative': RoundMode.TowardNegative, 'stochastic_midpoint8': RoundMode.StochasticFast,
    'stochastic_floor8': RoundMode.StochasticFastest,
}
BLOCKS = {
    'mxfp4': (formats.format_info_mxfp4_e2m1, 'e2m1'), 'mxfp6_e2m3': (formats.format_info_mxfp6_e2m3, 'e2m3'),
    'mxfp6_e3m2': (formats.format_info_mxfp6_e3m2, 'e3m2'), 'mxfp8_e4m3': (formats.format_info_mxfp8_e4m3, 'e4m3'),
    'mxfp8_e5m2': (formats.format_info_mxfp8_e5m2, 'e5m2'), 'mxint8_full': (formats.format_info_mxint8, 'int8'),
}
SCALES = np.exp2(np.arange(-40.0, 41.0))


def main(library):
    ledger = peers.Ledger()
    random = np.random.default_rng(2)
    for name, info in TYPES.items():
        codes = peers.all_codes(name)
        with np.errstate(all='ignore'):
            theirs = gfloat.decode_ndarray(info, codes.astype(np.int64))
        ledger.bits(name + ' decoded', codes, library.decode(name, codes), theirs)
        for rounding, mode in ROUNDINGS.items():
            stochastic = rounding.startswith('stochastic')
            x = peers.inputs(library, name, count=20000)
            x = x[np.isfinite(x)]
            if name == 'e8m0':
                x = x[x >= 2.0 ** -127]  # there it refuses what lies below, and anything negative
            draws = random.integers(0, 256, x.shape) if stochastic else None
            for saturate in [True] if name in ('e2m1', 'e2m3', 'e3m2') else [True, False]:
                values = gfloat.round_ndarray(info, x.astype(np.float64), mode, saturate, draws, 8 if stochastic else 0)
                # Its E8M0 sends ties to the even code, which here is a format of its own.
                ours = library.encode('e8m0_tie_even' if name == 'e8m0' else name, x, rounding, not saturate, draws)
                ours = library.decode(name, ours)
                ledger.bits('%s rounded %s' % (name, rounding), x, ours, values)
    for scheme, (info, element) in BLOCKS.items():
        x = peers.adversarial_blocks(library.decode(element, peers.all_codes(element)), SCALES, 32, 40, 320, 3)
        ours = library.quantize(scheme, x, 32)[3].reshape(-1, 32)
        theirs = [gfloat.quantize_block(info, block.astype(np.float64), gfloat.compute_scale_amax)
                  for block in x.reshape(-1, 32)]
        ledger.bits(scheme, x.reshape(-1, 32), ours, np.array(theirs, np.float32))
    return ledger.done('gfloat')


if __name__ == '__main__':
    sys.exit(main(peers.Library(sys.argv[1])))
