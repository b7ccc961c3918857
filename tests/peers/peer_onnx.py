"""onnx's reference evaluator: Cast to every narrow type, and QuantizeLinear in blocks under the library's scales."""
import sys

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import peers

TYPES = {'e2m1': TensorProto.FLOAT4E2M1, 'e4m3': TensorProto.FLOAT8E4M3FN, 'e5m2': TensorProto.FLOAT8E5M2,
         'e8m0': TensorProto.FLOAT8E8M0, 'bf16': TensorProto.BFLOAT16}
E8M0_ROUNDINGS = {'nearest': 'nearest_even', 'up': 'toward_positive', 'down': 'toward_zero'}


def evaluate(node, inputs, to):
    graph = helper.make_graph([node], 'one', [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in inputs],
                              [helper.make_tensor_value_info('y', to, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 24)])
    with np.errstate(all='ignore'):
        y = ReferenceEvaluator(model).run(None, inputs)[0]
    return y.view(np.uint16 if y.dtype.itemsize == 2 else np.uint8)


def known(name, x, saturate):
    """Where Cast differs from `encode`, and what it gives there."""
    nan, sign = np.isnan(x), np.where(np.signbit(x), 1 << (peers.FORMATS[name][0] - 1), 0)
    if name == 'e2m1':
        yield 'NaN is zero of the other sign (ml_dtypes)', nan, sign ^ 8
    elif name == 'e5m2':
        yield 'NaN has the code 7E (ml_dtypes)', nan, 0x7E | sign
    elif name == 'bf16':
        yield 'NaN has the code 7FC0 (ml_dtypes)', nan, 0x7FC0 | sign


def known_powers(x, mode, saturate):
    """Cast to E8M0 reads the exponent field and the bits below it, whatever the sign, of subnormals too."""
    bits = x.view(np.uint32)
    field, fraction = bits >> 23 & 0xFF, bits & 0x7FFFFF
    special = field == 0xFF
    if saturate:
        yield 'infinities are NaN even where it saturates', np.isinf(x), 0xFF
    else:
        yield 'infinities are NaN', np.isinf(x) & (x < 0), 0xFF
    half = (fraction > 0x400000) | ((fraction == 0x400000) & (field > 0))
    up = {'nearest': half, 'up': fraction > 0, 'down': False}[mode]
    code = np.where(saturate & (field == 0xFE), 0xFE, field + up)
    yield 'the sign is ignored', ~special & (x < 0), code
    if mode == 'nearest':
        yield 'from just above 2^-127 on it rounds up', (field == 0) & half, 1
    elif mode == 'up':
        yield 'every subnormal number is rounded up to 2^-126', (field == 0) & (fraction > 0), 1


def main(library):
    ledger = peers.Ledger()
    for name, to in TYPES.items():
        x = peers.inputs(library, name)
        for saturate in (1, 0) if name in ('e4m3', 'e5m2', 'e8m0') else (1,):
            for mode, rounding in E8M0_ROUNDINGS.items() if name == 'e8m0' else [('nearest', 'nearest_even')]:
                attributes = {'saturate': saturate} if name in ('e4m3', 'e5m2', 'e8m0') else {}
                if name == 'e8m0':
                    attributes['round_mode'] = mode
                theirs = evaluate(helper.make_node('Cast', ['x'], ['y'], to=to, **attributes), {'x': x}, to)
                ieee = name == 'bf16' or not saturate
                ours = library.encode(name, x, rounding, ieee)
                differences = known_powers(x, mode, saturate) if name == 'e8m0' else known(name, x, saturate)
                ledger.bits('Cast to %s, saturate=%d, %s' % (name, saturate, mode), x, ours, theirs,
                            [d for d in differences if (d[1] & (ours != d[2])).any()])
    scales = np.exp2(np.arange(-30.0, 31.0))
    for scheme, element in [('mxfp4', 'e2m1'), ('mxfp8_e4m3', 'e4m3'), ('mxfp8_e5m2', 'e5m2'), ('mxfp4_ceil', 'e2m1')]:
        x = peers.adversarial_blocks(library.decode(element, peers.all_codes(element)), scales, 32, 256, 512, 4)
        codes, scale_codes, _, _ = library.quantize(scheme, x, 32)
        node = helper.make_node('QuantizeLinear', ['x', 's'], ['y'], axis=1, block_size=32, output_dtype=TYPES[element])
        theirs = evaluate(node, {'x': x, 's': library.decode('e8m0', scale_codes)}, TYPES[element])
        ledger.bits('QuantizeLinear as ' + scheme, x, codes, theirs)
    return ledger.done('onnx ' + onnx.__version__)


if __name__ == '__main__':
    sys.exit(main(peers.Library(sys.argv[1])))
