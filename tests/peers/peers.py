"""What the comparisons with other implementations share: the library through ctypes, inputs, and a ledger of findings.

A comparison is of bits. Where a peer is known to differ, the test names the inputs, says what the peer gives there and
why, and fails if the peer gives anything else; nothing is left out and nothing is close enough.
"""
import ctypes
import sys

import numpy as np

# name: (bits, whether the top bit of those is a sign)
FORMATS = {
    'e2m1': (4, True), 'e1m2': (4, True), 'e2m3': (6, True), 'e3m2': (6, True), 'e4m3': (8, True), 'e5m2': (8, True),
    'int8': (8, True), 'ue4m3': (7, False), 'ue5m3': (8, False), 'e8m0': (8, False), 'bf16': (16, True), 'f16': (16, True),
}


class Library:
    def __init__(self, path):
        self.functions = ctypes.CDLL(path)

    def call(self, name, *arguments):
        def plain(a):
            if isinstance(a, str):
                return a.encode()
            return a.ctypes.data_as(ctypes.c_void_p) if isinstance(a, np.ndarray) else a
        if not getattr(self.functions, name)(*map(plain, arguments)):
            sys.exit('the library knows no such name: %s%r' % (name, arguments[:2]))

    def decode(self, format_name, codes):
        codes = np.ascontiguousarray(codes, np.uint32)
        out = np.empty(codes.shape, np.float32)
        self.call('microscale_decode', format_name, codes, ctypes.c_int64(codes.size), out)
        return out

    def encode(self, format_name, x, rounding='nearest_even', ieee=False, draws=None):
        kind = 'f64' if x.dtype == np.float64 else 'f32'
        x = np.ascontiguousarray(x)
        if draws is not None:
            draws = np.ascontiguousarray(draws, np.uint32)
        codes = np.empty(x.shape, np.uint32)
        self.call('microscale_encode_' + kind, format_name, rounding, int(ieee), x, draws, ctypes.c_int64(x.size), codes)
        return codes

    def quantize(self, scheme, x, block):
        """(codes one per element, scales, the stored datum, decoded values)"""
        x = np.ascontiguousarray(x, np.float32)
        rows, cols = x.shape
        codes = np.empty(x.shape, np.uint32)
        scales = np.empty((rows, -(-cols // block)), np.uint32)
        datum = np.zeros(1, np.float32)
        out = np.empty(x.shape, np.float32)
        self.call('microscale_quantize', scheme, ctypes.c_int64(rows), ctypes.c_int64(cols), x, codes, scales, datum, out)
        return codes, scales, datum[0], out


def all_codes(format_name):
    return np.arange(2 ** FORMATS[format_name][0], dtype=np.uint32)


def patterns(bits):
    return np.asarray(bits, np.uint32).view(np.float32)


SPECIAL = patterns([0, 0x80000000, 1, 0x80000001, 0x007FFFFF, 0x00800000, 0x00400000, 0x003FFFFF, 0x00200000, 0x7F7FFFFF,
                    0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00000, 0x7F800001, 0xFF800001])


def decision_points(library, format_name, ulps=2):
    """Every value of the format and every midpoint between two, each with its FP32 neighbours, both signs; half a step
    past the top likewise."""
    values = library.decode(format_name, all_codes(format_name))
    values = np.unique(np.abs(values[np.isfinite(values)]).astype(np.float64))
    top = values[-1] + (values[-1] - values[-2])
    values = np.append(values, [top, 2 * top])
    points = np.concatenate([values, (values[1:] + values[:-1]) / 2])
    bits = points[points <= np.finfo(np.float32).max].astype(np.float32).view(np.uint32).astype(np.int64)
    near = (bits[:, None] + np.arange(-ulps, ulps + 1)).ravel()
    near = near[(near >= 0) & (near <= 0x7F800000)].astype(np.uint32)
    return patterns(np.concatenate([near, near | np.uint32(0x80000000)]))


def inputs(library, format_name, seed=1, count=200000):
    """Decision points, any patterns at all, and numbers around the format's range."""
    random = np.random.default_rng(seed)
    any_pattern = patterns(random.integers(0, 2 ** 32, count, dtype=np.uint32))
    values = library.decode(format_name, all_codes(format_name))
    values = values[np.isfinite(values)]
    with np.errstate(over='ignore'):
        around = (random.choice(values, count) * random.uniform(-1.5, 1.5, count)).astype(np.float32)
    return np.concatenate([SPECIAL, decision_points(library, format_name), any_pattern, around])


def adversarial_blocks(element_values, scale_values, block, rows, columns, seed):
    """Blocks on which orders of operations part: elements on ties of the element format times a scale, wide ranges, zeros
    and subnormals; finite, one matrix."""
    random = np.random.default_rng(seed)
    grid = np.unique(np.abs(element_values[np.isfinite(element_values)]))
    ties = np.concatenate([grid, (grid[1:] + grid[:-1]) / 2])
    shape = (rows, columns // block, block)
    x = random.choice(ties, shape) * random.choice(scale_values, shape[:2] + (1,))
    x *= random.choice([1.0, 1.0, 1 + 2.0 ** -23, 1 - 2.0 ** -24, 0.3], shape)
    wide = random.normal(size=shape) * np.exp2(random.uniform(-20, 20, shape))
    small = random.normal(size=shape) * np.exp2(random.uniform(-149, -100, shape[:2] + (1,)))
    kind = random.integers(0, 8, shape[:2] + (1,))
    x = np.where(kind == 0, wide, np.where(kind == 1, small, np.where(kind == 2, x * (random.random(shape) < 0.1), x)))
    x *= random.choice([-1.0, 1.0], shape)
    with np.errstate(over='ignore'):
        x = x.astype(np.float32)
    return np.where(np.isfinite(x), x, np.float32(1)).reshape(rows, columns)


class Ledger:
    def __init__(self):
        self.compared, self.wrong, self.known = 0, 0, 0

    def bits(self, what, x, ours, theirs, known=()):
        """ours == theirs, element by element, but for `known`: (why, where, what the peer gives there), each of which
        must be true, and must occur."""
        ours, theirs = np.asarray(ours), np.asarray(theirs)
        if ours.dtype == np.float32:  # floats by their bits, any NaN as one
            ours = np.where(np.isnan(ours), np.float32(np.nan), ours).view(np.uint32)
            theirs = np.where(np.isnan(theirs), np.float32(np.nan), theirs.astype(np.float32)).view(np.uint32)
        ours, theirs = ours.astype(np.int64), theirs.astype(np.int64)
        rest = np.ones(ours.shape, bool)
        for why, where, gives in known:
            where = np.broadcast_to(where, ours.shape) & rest
            gives = np.broadcast_to(gives, ours.shape)
            bad = where & (theirs != gives)
            differ = where & (ours != theirs)
            self.known += int(differ.sum())
            self.failures('%s, where "%s" should hold' % (what, why), bad, x, gives, theirs)
            if not differ.any():
                self.wrong += 1
                print('FAILED %s: "%s" is no difference any more' % (what, why))
            rest &= ~where
        self.failures(what, rest & (ours != theirs), x, ours, theirs)
        self.compared += ours.size

    def failures(self, what, bad, x, expected, got):
        if bad.any():
            at = np.unravel_index(np.argmax(bad), bad.shape)
            self.wrong += int(bad.sum())
            print('FAILED %s: %d of %d, first for %s: %x here, %x there' %
                  (what, bad.sum(), bad.size, np.broadcast_to(x, bad.shape)[at], int(expected[at]), int(got[at])))

    def done(self, peer):
        print('%s: %d comparisons, %d known differences, %d unexplained' % (peer, self.compared, self.known, self.wrong))
        return 1 if self.wrong or not self.compared else 0
