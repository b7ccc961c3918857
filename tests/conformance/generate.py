#!/usr/bin/env python3
"""Makes the project's own vector files: inputs chosen here, where implementations part ways, and what oracle.py says of
them. The same files every time; nothing is drawn from a clock.

    generate.py write [DIRECTORY]    write every file (default: vectors/ beside this program)
    generate.py check [DIRECTORY]    compute every file anew and compare; exit status 1 where one differs
"""
import multiprocessing
import pathlib
import sys
from fractions import Fraction

sys.dont_write_bytecode = True     # leave nothing beside the sources
import oracle  # noqa: E402
from oracle import FORMATS, ONE, SCHEMES, Binary32, Integer, Power, Single

ROUNDINGS = ('nearest_even', 'toward_zero', 'toward_positive', 'toward_negative')


class Draws:
    """SplitMix64: the same numbers under every version of Python."""

    def __init__(self, *seed):
        self.state = 0
        for byte in repr(seed).encode():
            self.state = (self.state * 257 + byte) % 2 ** 64
        self.bits()

    def bits(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) % 2 ** 64
        z = self.state
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2 ** 64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2 ** 64
        return z ^ z >> 31

    def below(self, n):
        return self.bits() % n

    def between(self, low, high):
        return low + self.below(high - low + 1)

    def of(self, items):
        return items[self.below(len(items))]

    def uniform(self):
        """In [0, 1)."""
        return Fraction(self.bits() >> 40, 1 << 24)

    def bell(self):
        """Roughly normal: a sum of twelve uniform numbers."""
        return sum(self.uniform() for _ in range(12)) - 6


class VectorFile:
    def __init__(self, *about):
        self.lines = [oracle.HEADER] + ['# ' + line for line in about]
        self.count = {}

    def note(self, text):
        self.lines.append('# ' + text)

    def add(self, name, expect, /, **case):
        """A case under an id that starts with `name`, expecting the fields `expect` as far as they are defined."""
        self.count[name] = self.count.get(name, 0) + 1
        case = {'id': '%s-%d' % (name, self.count[name])} | {k: str(v) for k, v in case.items() if v is not None}
        result = oracle.compute(case)
        for key in expect.split():
            if key in result:
                case[key] = ','.join(result[key])
        self.lines.append(' '.join('%s=%s' % field for field in case.items()))

    def add_by_policy(self, name, expect, policies, /, **case):
        """One case where all of several policies agree, else one for each."""
        case = {k: str(v) for k, v in case.items() if v is not None}
        results = [oracle.compute(case | {'policy': policy}) for policy in policies]
        if not policies or (len(policies) > 1 and all(r == results[0] for r in results)):
            self.add(name, expect, **case)
        else:
            for policy in policies:
                self.add(name, expect, policy=policy, **case)

    def text(self):
        return '\n'.join(self.lines) + '\n'


# -------------------------------------------------------------------------------------------------------------------
# Binary32 by its bits.

def bits_of(number):
    """The bits of the binary32 number nearest to a Fraction, or of a Single."""
    return (number if isinstance(number, Single) else Single.of(number)).bits()


def moved(bits, ulps):
    """The number some places away from zero (or, where ulps is negative, toward it)."""
    magnitude = max(0, min(0x7f7fffff, (bits & 0x7fffffff) + ulps))
    return bits & 0x80000000 | magnitude


def negated(bits):
    return bits ^ 0x80000000


def singles(all_bits):
    return ','.join('%08x' % b for b in all_bits)


def hexes(codes, digits=2):
    return ','.join('%0*x' % (digits, c) for c in codes)


POSITIVE_ZERO, NEGATIVE_ZERO, QUIET_NAN, INFINITE = 0, 0x80000000, 0x7fc00000, 0x7f800000


# -------------------------------------------------------------------------------------------------------------------
# Formats.

def sampled_magnitudes(form):
    """All magnitude codes of a small format; of a 16-bit one those around each power of two and half-way between."""
    count = len(form.values)
    if count <= 256:
        return list(range(count))
    step = 1 << form.fraction_bits
    near = {c + d for c in range(0, count, step) for d in (-1, 0, 1, step // 2)}
    return sorted(c for c in near | {count - 1} if 0 <= c < count)


def all_codes(form):
    if form.width <= 8:
        return range(1 << form.width)
    magnitudes = sampled_magnitudes(form) + [form.infinity, form.infinity + 1, form.mask]
    return [sign | code for sign in (0, form.sign) for code in magnitudes]


def decision_points(form, magnitudes):
    """(value, midpoint to the next) of each magnitude, as Fractions."""
    values = form.values + [form.beyond]
    return [(values[c], (values[c] + values[c + 1]) / 2) for c in magnitudes]


def signed(form):
    return isinstance(form, Integer) or getattr(form, 'sign', 0) != 0


def encode_inputs(form, magnitudes, which):
    """The bits of the decision points of a rounding and their neighbours, of both signs where the format has them."""
    points = set()
    for value, midpoint in decision_points(form, magnitudes):
        for point in (value, midpoint) if which == 'nearest_even' else (value,):
            b = bits_of(point)
            points |= {moved(b, -1), b, moved(b, 1)}
    points |= {bits_of(form.beyond), moved(bits_of(form.beyond), -1)}
    points |= {POSITIVE_ZERO, 1, 0x00400000, 0x007fffff, 0x00800000, 0x7f7fffff}
    points = sorted(points)
    return points + ([negated(b) for b in points] if signed(form) else [NEGATIVE_ZERO])


def formats_file():
    f = VectorFile('Every code of every format (of bf16 and f16 those around the powers of two), and every decision point',
                   'with its neighbours in binary32, for every rounding.')
    for name, form in FORMATS.items():
        f.note(name)
        digits = 4 if form.width == 16 else 2
        f.add('decode/' + name, 'out', op='decode', format=name, codes=hexes(all_codes(form), digits))

        # Small pieces, so that a failure names what it is about.
        magnitudes = sampled_magnitudes(form)
        if form.width == 16:
            magnitudes = magnitudes[::3] + magnitudes[-2:]
        for rounding in ROUNDINGS:
            inputs = encode_inputs(form, magnitudes, rounding)
            for start in range(0, len(inputs), 400):
                f.add('encode/%s-%s' % (name, rounding), 'codes', op='encode', format=name, rounding=rounding,
                      policy='e8m0_tie_up' if name == 'e8m0' and rounding == 'nearest_even' else None,
                      **{'in': singles(inputs[start:start + 400])})
        edge = bits_of(form.beyond)
        top = [moved(bits_of(form.values[-1]), d) for d in (0, 1)] + [moved(edge, d) for d in (-1, 0, 1)] + [0x7f7fffff]
        top.append(bits_of((form.values[-1] + form.beyond) / 2))
        if form.beyond >= 2 ** 128:
            top = [moved(bits_of(form.values[-1]), d) for d in (0, 1)] + [0x7f7fffff, 0x7f7fff00]
        top.append(INFINITE)
        if signed(form):
            top += [negated(b) for b in top]
        for rounding in ROUNDINGS:
            for overflow in ('saturate', 'ieee'):
                f.add_by_policy('overflow/%s-%s-%s' % (name, rounding, overflow), 'codes', policies_of_format(name),
                                op='encode', format=name, rounding=rounding, overflow=overflow, **{'in': singles(top)})
        f.add('nan/' + name, 'codes', op='encode', format=name, policy=None if form.has_nan else 'nan_to_max',
              **{'in': singles([QUIET_NAN, 0x7f800001] + ([0xffc00000] if form.has_nan else []))})
        if name == 'e8m0':
            f.add('encode/e8m0-nearest_even', 'codes', op='encode', format=name, policy='e8m0_tie_even',
                  **{'in': singles(encode_inputs(form, range(0, 255, 3), 'nearest_even'))})
        if name in ('int4', 'int8'):
            lowest = [negated(b) for b in (bits_of(Fraction(2)), bits_of(form.values[-1]), bits_of(Fraction(4)))]
            lowest.append(negated(bits_of((form.values[-1] + 2) / 2)))
            f.add_by_policy('lowest/' + name, 'codes', ('int_symmetric', 'int_full'), op='encode', format=name,
                            **{'in': singles(lowest)})
        binary64_cases(f, name, form)
        stochastic_cases(f, name, form)
    return f


def policies_of_format(name):
    return {'int4': ('int_symmetric', 'int_full'), 'int8': ('int_symmetric', 'int_full'),
            'e8m0': ('e8m0_tie_up', 'e8m0_tie_even')}.get(name, ())


def double_bits(size, ulps):
    """The bits of a positive normal Fraction that binary64 holds, some places on."""
    exponent = oracle.floor_log2(size)
    significand = size / oracle.power_of_two(exponent - 52)
    return ((exponent + 1022) << 52) + int(significand) + ulps


def binary64_cases(f, name, form):
    """Numbers that would be a tie if they went through binary32 first."""
    magnitudes = sampled_magnitudes(form)
    magnitudes = magnitudes[::max(1, len(magnitudes) // 32)]
    inputs = []
    for value, midpoint in decision_points(form, magnitudes):
        inputs += ['%016x' % double_bits(midpoint, d) for d in (-1, 0, 1)]
    f.add('binary64/' + name, 'codes', op='encode', format=name,
          policy='e8m0_tie_up' if name == 'e8m0' else None, in64=','.join(inputs))


def stochastic_cases(f, name, form):
    """At the threshold of each draw and one place beside it."""
    draws = Draws('stochastic', name)
    magnitudes = sampled_magnitudes(form)
    if len(magnitudes) > 32:
        magnitudes = [draws.of(magnitudes) for _ in range(24)]
    for rounding, numerator in (('stochastic_midpoint8', lambda r: 511 - 2 * r), ('stochastic_floor8', lambda r: 512 - 2 * r)):
        inputs, randoms = [], []
        values = form.values + [form.beyond]
        for c in magnitudes:
            for r in (0, 127, 128, 255, draws.below(256)):
                point = values[c] + (values[c + 1] - values[c]) * Fraction(numerator(r), 512)
                b = bits_of(point)
                if b >= INFINITE:
                    continue
                for ulps in (-1, 0, 1):
                    sign = 0x80000000 if signed(form) and draws.below(2) else 0
                    inputs.append(sign | moved(b, ulps))
                    randoms.append(r)
        f.add('%s/%s' % (rounding, name), 'codes', op='encode', format=name, rounding=rounding,
              random=hexes(randoms), **{'in': singles(inputs)})


# -------------------------------------------------------------------------------------------------------------------
# Blocks that tell implementations apart.

class Maker:
    """Makes blocks for one scheme under one tensor reference."""

    def __init__(self, scheme, reference, draws):
        self.scheme, self.draws = scheme, draws
        self.t = scheme.factors(reference)
        self.reference = reference.size
        self.size = scheme.shape[0] * scheme.shape[1]
        element = scheme.element
        self.largest = element.values[-1]
        self.top = scheme.top.size if scheme.top else self.largest
        self.ties = [(a + b) / 2 for a, b in zip(element.values, element.values[1:])]

    def unit(self):
        """What one unit of an element under a block scale of 1 stands for."""
        return self.scheme.decoded(ONE, ONE, self.t).size or Fraction(1)

    def amax_range(self):
        """A plausible amax of a block, as bits."""
        size = self.reference if self.reference else Fraction(1)
        return bits_of(size * (1 + self.draws.uniform()) / 2 ** self.draws.between(1, 9))

    def sign(self, b):
        return b ^ (self.draws.below(2) << 31)

    def filled(self, amax_bits, others):
        """`amax_bits` at some place, others drawn by `others` and kept below it."""
        block = []
        for _ in range(self.size):
            b = others()
            block.append(self.sign(b if b & 0x7fffffff <= amax_bits else moved(amax_bits, -self.draws.below(1 << 22))))
        block[self.draws.below(self.size)] = self.sign(amax_bits)
        return block

    def quantum(self, amax_bits):
        """What one unit of an element stands for in a block of that amax."""
        scale, _ = self.scheme.quantize([Single.from_bits(amax_bits)], self.t, 'nearest_even', [0])
        size = self.scheme.decoded(ONE, self.scheme.scale_value(scale), self.t).size
        return size if isinstance(size, Fraction) else Fraction(1)

    def tied(self, amax_bits=None):
        """Elements on ties of the element format times the scale, or a place or two beside."""
        amax_bits = self.amax_range() if amax_bits is None else amax_bits
        quantum = self.quantum(amax_bits)
        return self.filled(amax_bits, lambda: moved(bits_of(self.draws.of(self.ties) * quantum),
                                                    self.draws.between(-2, 2)))

    def normal(self, amax_bits=None):
        size = Single.from_bits(self.amax_range() if amax_bits is None else amax_bits).size
        return self.filled(bits_of(size), lambda: bits_of(abs(self.draws.bell()) * size / 4))

    def bfloat16(self):
        return [b & 0xffff0000 for b in self.normal(self.amax_range() & 0xffff0000)]

    def on_scale_tie(self):
        """An amax that lies half-way between two scales, or beside; the elements tie as well."""
        form = self.scheme.scale_format
        if isinstance(form, (Power, Binary32)):
            # A decision of a rule of powers of two lies somewhere in a binade; all of them are near one of these.
            top = self.largest / oracle.power_of_two(oracle.floor_log2(self.largest))
            at = self.draws.of([Fraction(1), Fraction(2), top] + [2 - Fraction(1, 2 ** k) for k in (1, 2, 3, 4)])
            size = at * oracle.power_of_two(self.draws.between(-20, 20))
        else:
            index = self.draws.between(1, len(form.values) - 2)
            size = (form.values[index] + form.values[index + 1]) / 2 * self.top * self.unit()
        return self.tied(moved(bits_of(size), self.draws.between(-2, 2)))

    def on_order(self):
        """An amax for which the order of the operations decides the scale: searched for among those near ties."""
        e, d = self.t.encode or ONE / self.t.decode, self.t.decode or ONE / self.t.encode
        top = self.scheme.top or oracle.SIX
        part = ONE / top
        form = self.scheme.scale_format
        for _ in range(200):
            index = self.draws.between(8, len(form.values) - 2)
            tie = (form.values[index] + form.values[index + 1]) / 2 * self.top
            bits = moved(bits_of(tie / e.size), self.draws.between(-1, 1))
            a = Single.from_bits(bits)
            orders = (a * (e * part), a * e * part, a * e / top, a / top * e, a / top / d, a / (top * d))
            if len({form.encode(ideal) for ideal in orders}) > 1:
                break
        return self.tied(bits)

    def wide(self):
        """Magnitudes over the whole range, in one block."""
        low = self.draws.between(1, 150)
        return [self.sign(self.draws.between(low, low + 100) << 23 | self.draws.below(1 << 23)) for _ in range(self.size)]

    def underflowing(self):
        """A block whose scale lies about the smallest there is."""
        form = self.scheme.scale_format
        smallest = oracle.power_of_two(-126) if isinstance(form, (Power, Binary32)) else form.values[1]
        factor = self.draws.of([Fraction(1, 64), Fraction(1, 4), Fraction(1, 2), Fraction(3, 4), Fraction(1), Fraction(3, 2)])
        size = smallest * factor * self.largest * self.unit()
        return self.normal(max(1, moved(bits_of(size), self.draws.between(-1, 1))))

    def saturating(self):
        """A block beyond what the largest scale covers, times 1 to 1000."""
        form = self.scheme.scale_format
        largest = oracle.power_of_two(125) if isinstance(form, (Power, Binary32)) else form.values[-1]
        size = largest * self.largest * self.unit() * self.draws.of([1, 2, 7, 30, 137, 1000])
        size = min(size, oracle.LARGEST.size)
        return self.tied(bits_of(size))

    def zeros(self):
        return [self.draws.of([POSITIVE_ZERO, NEGATIVE_ZERO]) for _ in range(self.size)]

    def nearly_zero(self):
        """Zeros of both signs beside numbers that vanish."""
        block = self.normal()
        for i in range(0, self.size, 2):
            block[i] = self.draws.of([POSITIVE_ZERO, NEGATIVE_ZERO, 1, 0x80000001, 0x00400000, 0x807fffff])
        return block

    def subnormal(self):
        """Nothing but binary32 subnormals."""
        return [self.sign(self.draws.below(1 << self.draws.between(1, 23))) for _ in range(self.size)]

    def equal(self):
        return [self.sign(self.amax_range())] * self.size

    def with_one(self, special):
        block = self.normal()
        block[self.draws.below(self.size)] = special
        return block


KINDS = ('tied', 'tied', 'on_scale_tie', 'on_scale_tie', 'wide', 'underflowing', 'saturating', 'nearly_zero', 'normal',
         'bfloat16', 'subnormal', 'equal', 'zeros')

POLICIES = {'nvfp4_torchao': ('scalar_division', 'scalar_reciprocal'),
            'nvfp4_modelopt': ('scalar_division', 'scalar_reciprocal'),
            'nvfp4_compressed_tensors': ('scalar_division', 'scalar_reciprocal'),
            'mxint8': ('int_symmetric', 'int_full')}
for _name in SCHEMES:
    if _name.startswith('ue5m3_fp4') and _name != 'ue5m3_fp4_exact':
        POLICIES[_name] = ('dequant_payload_first', 'dequant_scale_first')


def matrix_of(blocks, rows, cols, shape, axis):
    """Lays blocks over a matrix; what lies beyond its edge is left out. Row-major."""
    grid = oracle.Grid(rows, cols, shape, axis)
    result = [None] * (rows * cols)
    for block, indices in zip(blocks, grid.blocks):
        for value, index in zip(block, indices):
            result[index] = value
    return result


def block_count(rows, cols, shape, axis):
    return len(oracle.Grid(rows, cols, shape, axis).blocks)


REFERENCES = (Fraction(1), Fraction(6), Fraction(448 * 6), Fraction(37, 16), Fraction(10 ** 6, 7), Fraction(3, 10 ** 7))


# Subnormal, about the smallest normal number, where TransformerEngine's s A overflows, and nearly all there is.
EXTREME_REFERENCES = (Fraction(3, 2 ** 149), Fraction(13, 10) / 2 ** 126, Fraction(8 * 10 ** 35), Fraction(3 * 10 ** 38))


def add_tensor(f, name, group, draws, kinds, rows, cols, axis='row', too_small=1, given=True, expect='scales codes',
               policies=None, reference=None, **options):
    """A matrix whose blocks are of `kinds` in turn. `too_small`: how many times the reference is below the amax that
    the data were made for; `given`: whether the case names the reference."""
    scheme = SCHEMES[name](None, options.get('target', 448))
    made_for = Single.of(reference or draws.of(REFERENCES) * (1 if draws.below(2) else 1 + draws.uniform()))
    maker = Maker(scheme, made_for, draws)
    blocks = [getattr(maker, kinds[i % len(kinds)])() for i in range(block_count(rows, cols, scheme.shape, axis))]
    data = matrix_of(blocks, rows, cols, scheme.shape, axis)
    case = {'op': 'quantize', 'scheme': name, 'rows': rows, 'cols': cols}
    if axis == 'col':
        case['axis'] = axis
    if scheme.reads_reference and given:
        case['amax'] = '%08x' % bits_of(made_for.size / too_small)
    if scheme.stored == 'tensor_scale':
        expect += ' tensor_scale'
    elif scheme.stored:
        expect += ' tensor_encode'
    if 'rounding' in options and options['rounding'].startswith('stochastic'):
        options['random'] = hexes(draws.below(256) for _ in data)
    if scheme.draws_scale:
        options['scale_random'] = scale_draws(scheme, case | options, data, draws)
    f.add_by_policy('%s/%s' % (name, group), expect, POLICIES.get(name, ()) if policies is None else policies, **case,
                    **options, **{'in': singles(data)})


def scale_draws(scheme, case, data, draws):
    """A draw for each block's scale: one that just takes it away from zero, the one below, or any."""
    numbers = [Single.from_bits(b) for b in data]
    t = scheme.factors(Single.from_bits(int(case['amax'], 16)) if 'amax' in case else oracle.amax_of(numbers, False))
    randoms = oracle.read_randoms(case, len(data))
    result = []
    for block in oracle.grid_of(scheme, case).blocks:
        values = [numbers[i] for i in block]
        scale, codes = scheme.quantize(values, t, case.get('rounding', 'nearest_even'), [randoms[i] for i in block])
        ideal = None if scale is None else scheme.corrected(values, scale, codes, t)
        choices = [0, 2 ** 32 - 1, draws.below(2 ** 32)]
        if ideal is not None and ideal.is_finite and ideal.size < scheme.scale_format.values[-1]:
            first = first_draw_away(scheme.scale_format, ideal.size)
            choices = [draws.below(2 ** 32)] + [first, first - 1] * 3
        result.append(max(0, min(2 ** 32 - 1, draws.of(choices))))
    return singles(result)


def first_draw_away(form, size):
    """The least draw under which stochastic_midpoint32 rounds `size` away from zero."""
    lower = max(c for c, value in enumerate(form.values) if value <= size)
    delta = (size - form.values[lower]) / (form.values[lower + 1] - form.values[lower])
    return -(-(2 ** 33 * (1 - delta) - 1) // 2)


def add_scheme(f, name):
    draws = Draws('scheme', name)
    scheme = SCHEMES[name]()
    height, width = scheme.shape
    square = height > 1
    f.note(name)

    def tensor(group, kinds, rows, cols, **options):
        add_tensor(f, name, group, draws, kinds, rows, cols, **options)

    # Two rows of one block each (wide blocks), two of two, or one square.
    rows, cols = (height, width) if square else (2, width if width == 32 else 2 * width)
    repeat = 1 if square else 2
    for kind in KINDS if height < 32 else ('tied', 'on_scale_tie', 'wide', 'underflowing', 'saturating', 'nearly_zero'):
        for i in range(repeat if kind not in ('zeros', 'equal') else 1):
            tensor(kind.replace('_', '-'), [kind], rows, cols, expect='scales codes out' if i == 0 else 'scales codes')
    tensor('mixed', ['zeros', 'tied', 'wide', 'nearly_zero'], rows, cols, given=False, expect='scales codes out')
    if scheme.reads_reference and height != 32:
        for factor in (1, 30, 1000) if square else (1, 2, 10, 30, 100, 137, 300, 1000):
            tensor('reference-%d-times-too-small' % factor, ['tied', 'on_scale_tie'], rows, cols, too_small=factor)
        for _ in range(2 if square else 8):
            tensor('order', ['on_order'], rows, cols)
        tensor('own-reference', ['normal', 'tied'], rows, cols, given=False)
        tensor('zero-reference', ['normal'], rows, cols, too_small=Fraction(10) ** 60)
    if name.startswith('ue5m3_fp4') and height != 32:
        for target in (2048,) if square else (1, 2048, 61440):
            tensor('target-%d' % target, ['tied', 'on_scale_tie'], rows, cols, target=target)

    # Other shapes: tails in both directions, one row, one column, nothing.
    shapes = [(1, 1), (0, 3), (3, 0)]
    shapes += [(height + 1, width + 2)] if square else [(3, width + 1), (2, width - 1), (1, 2 * width + 7), (5, 1)]
    for shape in shapes:
        for axis in ('row', 'col'):
            if not (height == 32 and axis == 'col' and shape[0] > 32):
                tensor('shape-%dx%d-%s' % (*shape, axis), ['tied', 'normal'], *shape, axis=axis, expect='scales codes out')
    if not square:
        tensor('columns', ['tied', 'on_scale_tie', 'wide'], width, 3, axis='col', expect='scales codes out')

    # Other roundings of the elements.
    if height != 32:
        for rounding in ROUNDINGS[1:] + ('stochastic_midpoint8', 'stochastic_floor8'):
            tensor(rounding, ['tied', 'normal'], rows, cols, rounding=rounding)

    if scheme.draws_scale:
        for kind in ('tied', 'normal', 'on_order', 'wide', 'equal') * 3:
            tensor('draws', [kind], 3, 2 * width, too_small=draws.of([1, 1, 2, 30]))
        for factor in (10 ** 9, 10 ** 18, 10 ** 20, 10 ** 30):      # the sums grow beyond binary32
            tensor('infinite-sums', ['normal', 'wide', 'equal'], 3, width, too_small=factor)
    add_nonfinite(f, name, draws)
    add_dequantize(f, name, draws)
    if scheme.reads_reference and height != 32:
        for reference in EXTREME_REFERENCES:
            tensor('extreme-reference', ['tied', 'normal'], rows, cols, reference=reference, expect='scales codes out')


def add_nonfinite(f, name, draws):
    """One block with a NaN or an infinity, beside one without."""
    scheme = SCHEMES[name]()
    height, width = scheme.shape
    maker = Maker(scheme, ONE, draws)
    for special, what in ((QUIET_NAN, 'nan'), (INFINITE, 'infinity'), (INFINITE | NEGATIVE_ZERO, 'infinity')):
        policies = POLICIES.get(name, ())
        if what == 'infinity' and name.startswith('mx'):
            policies = ('inf_scale_nan',)
        elif what == 'nan' and name in ('nvfp4', 'nvfp4_2d', 'nvfp4_4over6'):
            policies = ('nan_ignored',)
        data = matrix_of([maker.with_one(special), maker.equal()], 2 * height, width, (height, width), 'row')
        case = {'rows': 2 * height, 'cols': width, 'amax': '3f800000' if scheme.reads_reference else None}
        if scheme.draws_scale:
            case['scale_random'] = scale_draws(scheme, case, data, draws)
        f.add_by_policy('%s/%s' % (name, what), 'scales codes', policies, op='quantize', scheme=name, **case,
                        **{'in': singles(data)})


def add_dequantize(f, name, draws):
    """Every code under the most telling scales."""
    scheme = SCHEMES[name]()
    height, width = scheme.shape
    if height > 1:
        return
    codes = list(range(1 << scheme.element.width))
    form = scheme.scale_format
    if isinstance(form, Binary32):
        scales = [bits_of(ONE), 1, 0x007fffff, 0x7f7fffff, QUIET_NAN, 0x3e99999a, 0x00000003, 0x7e800000]
        write = singles
    else:
        all_ones = (1 << form.width) - 1
        scales = [0, 1, 2, 7, 8, 9, all_ones // 2, all_ones // 2 + 1, all_ones - 7, all_ones - 2, all_ones - 1, all_ones]
        write = hexes
    data = {None: [None], 'amax': [Fraction(1), Fraction(5, 3), Fraction(10) ** 30, Fraction(1, 10 ** 40)]}.get(
        scheme.stored, [Fraction(1), Fraction(3, 2688), Fraction(10) ** 34, Fraction(7, 10 ** 41)])
    for datum in data:
        columns = [codes[(c * 7 + r * width) % len(codes)] for r in range(len(scales)) for c in range(width)]
        f.add_by_policy(name + '/dequantize', 'out', POLICIES.get(name, ()) if name.startswith('ue5m3') else (),
                        op='dequantize', scheme=name, rows=len(scales), cols=width, codes=hexes(columns, 1),
                        scales=write(scales), **({scheme.stored: '%08x' % bits_of(datum)} if datum else {}))
    odd = [draws.of(codes) for _ in range(3 * (width + 1))]
    f.add(name + '/dequantize-columns', 'out', op='dequantize', scheme=name, rows=width + 1, cols=3, axis='col',
          codes=hexes(odd, 1), scales=write(draws.of(scales[1:-1]) for _ in range(6)),
          **({scheme.stored: '3fa00000'} if scheme.stored else {}))


def schemes_file(title, names):
    f = VectorFile(title, 'Blocks on which orders of operations, ties and limits show; oracle.py alone speaks.')
    for name in names:
        add_scheme(f, name)
    return f


# -------------------------------------------------------------------------------------------------------------------
# GEMM.

def operand(draws, name, rows, k, spread):
    """(codes, scales) as text: scales within `spread` codes of the middle."""
    scheme = SCHEMES[name]()
    height, width = scheme.shape
    form = scheme.scale_format
    count = -(-rows // height) * -(-k // width)
    codes = []
    while len(codes) < rows * k:
        code = draws.below(1 << scheme.element.width)
        if not scheme.element.decode(code).is_nan and not scheme.element.decode(code).is_infinite:
            codes.append(code)
    if isinstance(form, Binary32):
        scales = singles(bits_of((1 + draws.uniform()) * oracle.power_of_two(draws.between(-spread, spread)))
                         for _ in range(count))
    else:
        middle = len(form.values) // 2
        scales = hexes(max(0, min(len(form.values) - 1, middle + draws.between(-spread, spread))) for _ in range(count))
    return hexes(codes, 1), scales


def add_gemm(f, group, draws, a, b, m, n, k, accumulations, spread, factors=True, cancel=False, nan_scale=False):
    a_codes, a_scales = operand(draws, a, m, k, spread)
    b_codes, b_scales = operand(draws, b, n, k, spread)
    if cancel and k >= 2:
        # The second half of B's codes negates what the first half gave under A's, up to the scales.
        width = SCHEMES[b]().element.width
        half = k // 2
        for r in range(n):
            codes = b_codes.split(',')
            for c in range(half):
                codes[r * k + half + c] = '%x' % (int(codes[r * k + c], 16) ^ 1 << (width - 1))
            b_codes = ','.join(codes)
    if nan_scale:
        a_scales = ','.join(['7f' if SCHEMES[a]().scale_format.width == 7 else 'ff'] + a_scales.split(',')[1:])
    for accumulate in accumulations:
        f.add('%s/%s-%s-%s' % (group, a, b, accumulate), 'out', op='gemm', scheme=a, b_scheme=None if a == b else b,
              m=m, n=n, k=k, accumulate=accumulate, a_codes=a_codes, a_scales=a_scales, b_codes=b_codes,
              b_scales=b_scales, a_tensor_scale='%08x' % bits_of(Fraction(1 + draws.below(99), 77)) if factors else None,
              b_tensor_scale='%08x' % bits_of(Fraction(1 + draws.below(99), 7)) if factors else None)


def gemm_file():
    f = VectorFile('GEMM: every accumulation, one scheme and two, tails, cancellation, scales far apart.')
    all_ways = tuple(oracle.ACCUMULATIONS)
    draws = Draws('gemm')
    kinds = ('ue5m3_fp4', 'ue5m3_fp4_2d', 'ue5m3_fp4_b32', 'ue5m3_fp4_b32_2d', 'nvfp4', 'nvfp4_2d', 'ue5m3_single',
             'mxfp4', 'mxfp6_e2m3', 'mxfp6_e3m2', 'mxfp8_e4m3', 'mxfp8_e5m2', 'mxint8', 'ufp4')
    for name in kinds:
        f.note(name)
        add_gemm(f, 'even', draws, name, name, 2, 2, 64, all_ways, 6)
        add_gemm(f, 'tail', draws, name, name, 1, 2, 77, all_ways, 12, factors=False)
        add_gemm(f, 'wide', draws, name, name, 1, 1, 150, all_ways, 60)
        add_gemm(f, 'cancel', draws, name, name, 2, 1, 96, all_ways, 3, cancel=True)
        add_gemm(f, 'short', draws, name, name, 2, 2, 1, all_ways, 20)
    f.note('two schemes')
    for i, a in enumerate(kinds):
        b = kinds[(i * 5 + 3) % len(kinds)]
        if a != b:
            add_gemm(f, 'mixed', draws, a, b, 2, 2, 80, all_ways, 9)
            add_gemm(f, 'mixed', draws, b, a, 1, 3, 33, all_ways, 20)
    f.note('other names of the same kinds of operand, a NaN scale, nothing to add, nothing at all')
    for name in ('nvfp4_4over6', 'nvfp4_torchao', 'nvfp4_modelopt', 'nvfp4_compressed_tensors', 'nvfp4_exact',
                 'nvfp4_single', 'ue5m3_fp4_exact', 'mxfp4_even', 'mxfp4_ceil', 'mxfp8_e4m3_ceil', 'mxfp8_e5m2_ceil'):
        add_gemm(f, 'named', draws, name, draws.of(kinds), 1, 2, 40, all_ways, 8)
    for name in ('nvfp4', 'ue5m3_fp4', 'ue5m3_single', 'mxfp4', 'mxfp8_e4m3'):
        add_gemm(f, 'nan-scale', draws, name, name, 2, 1, 64, all_ways, 4, nan_scale=True)
    for m, n, k in ((1, 2, 0), (0, 2, 16), (2, 0, 16), (0, 0, 0)):
        add_gemm(f, 'empty', draws, 'nvfp4', 'mxfp4', m, n, k, all_ways, 4)
    return f


# -------------------------------------------------------------------------------------------------------------------
# Transforms and memory.

def hadamard_file():
    f = VectorFile('Hadamard transforms whose sums are exact, so that only signs, order and the factor show.')
    draws = Draws('hadamard')
    signs = '+,+,+,-,+,-,-,-,-,-,-,+,-,+,-,-'
    for size in (2, 4, 8, 16, 32, 64, 128, 256):
        runs = 2 if size <= 64 else 1

        def data():
            return singles(bits_of(Fraction(draws.between(-2000, 2000), 16)) for _ in range(runs * size))
        f.add('h%d' % size, 'out', op='hadamard', size=size, **{'in': data()})
        drawn = ','.join(draws.of('+-') for _ in range(size))
        f.add('h%d-signs' % size, 'out', op='hadamard', size=size, signs=drawn, **{'in': data()})
        unit = ['00000000'] * size
        unit[draws.below(size)] = '41100000'
        f.add('h%d-unit' % size, 'out', op='hadamard', size=size, signs=drawn, **{'in': ','.join(unit)})
    f.add('h16-fixed', 'out', op='hadamard', size=16, signs=signs,
          **{'in': singles(bits_of(Fraction(draws.between(-900, 900), 8)) for _ in range(48))})
    f.add('h16-empty', 'out', op='hadamard', size=16, **{'in': ''})
    return f


def memory_file():
    f = VectorFile('Packed codes and the 128x4 tiles of scales.')
    draws = Draws('memory')
    for bits in (4, 6, 8):
        for count in (0, 1, 2, 3, 4, 5, 7, 8, 16, 31, 33, 64):
            f.add('pack%d' % bits, 'bytes', op='pack', bits=bits, codes=hexes((draws.below(1 << bits) for _ in range(count)),
                                                                             1 if bits == 4 else 2))
    for rows, cols in ((0, 0), (0, 5), (5, 0), (1, 1), (31, 1), (32, 4), (33, 5), (96, 2), (127, 3), (128, 4), (129, 4),
                       (128, 9), (260, 5)):
        f.add('swizzle', 'bytes', op='layout', name='swizzle_128x4', rows=rows, cols=cols,
              **{'in': hexes(draws.between(1, 255) for _ in range(rows * cols))})
    return f


FAMILIES = {
    'schemes_ue5m3': ('UE5M3 schemes.', [n for n in SCHEMES if n.startswith('ue5m3')]),
    'schemes_nvfp4': ('NVFP4 schemes.', [n for n in SCHEMES if n.startswith('nvfp4') and n != 'nvfp4_ms_eden']),
    'schemes_ms_eden': ('MS-EDEN; each draw of a scale is the first that takes it away from zero, the one before, or any.',
                        ['nvfp4_ms_eden']),
    'schemes_mx': ('MX schemes and UFP4.', [n for n in SCHEMES if n.startswith('mx') or n == 'ufp4']),
}


def text_of(name):
    if name in FAMILIES:
        return schemes_file(*FAMILIES[name]).text()
    return {'formats': formats_file, 'gemm': gemm_file, 'hadamard': hadamard_file, 'memory': memory_file}[name]().text()


# The longest first.
NAMES = ('gemm', 'schemes_mx', 'schemes_nvfp4', 'schemes_ue5m3', 'schemes_ms_eden', 'formats', 'hadamard', 'memory')


def main(arguments):
    if not arguments or arguments[0] not in ('write', 'check') or len(arguments) > 2:
        print(__doc__, file=sys.stderr)
        return 2
    directory = pathlib.Path(arguments[1] if len(arguments) == 2 else pathlib.Path(__file__).parent / 'vectors')
    differing = 0
    with multiprocessing.Pool() as pool:
        texts = list(pool.imap(text_of, NAMES))
    for name, text in zip(NAMES, texts):
        path = directory / (name + '.vec')
        if arguments[0] == 'write':
            directory.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding='ascii')
        elif not path.is_file() or path.read_text(encoding='ascii') != text:
            differing += 1
            print('%s: differs from what this program makes' % path)
    return 1 if differing else 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
