#!/usr/bin/env python3
"""The numbers of vector files, computed a second time: no code is shared with the library, and none of its methods.

A real number is a Fraction. A small format is the sorted list of its values, and encoding looks a number up in that
list. A binary32 number is a `Single`, whose operators round the exact result once, so that a scale rule reads here as it
is written in docs/numerics.md. Nothing depends on the floating-point unit, and nothing is fast.

    oracle.py check FILE...    recompute every expectation; exit status 1 if one differs, 2 if a file is malformed

In this order: binary32, formats, schemes, operations, files.
"""
import bisect
import functools
import struct
import sys
from fractions import Fraction

INFINITY = float('inf')
NOT_A_NUMBER = float('nan')


@functools.lru_cache(maxsize=None)
def power_of_two(exponent):
    return Fraction(1 << exponent) if exponent >= 0 else Fraction(1, 1 << -exponent)


def floor_log2(size):
    """The exponent of the binade of a positive Fraction."""
    above, below = size.numerator, size.denominator
    exponent = above.bit_length() - below.bit_length()
    return exponent - (above < below << exponent if exponent >= 0 else above << -exponent < below)


# -------------------------------------------------------------------------------------------------------------------
# Binary32.

class Single:
    """A binary32 number: a sign, and a size that is a Fraction, infinite or not a number."""
    __slots__ = ('negative', 'size')

    def __init__(self, size, negative=False):
        self.size, self.negative = size, negative

    @staticmethod
    def nearest(size, negative=False):
        """A size rounded to nearest, ties to even."""
        if size == 0:
            return Single(Fraction(0), negative)
        steps, rest, below, quantum = Single.in_steps(size)
        if 2 * rest > below or (2 * rest == below and steps % 2):
            steps += 1
        rounded = steps * power_of_two(quantum)
        return Single(INFINITY if rounded >= power_of_two(128) else rounded, negative)

    @staticmethod
    def truncated(size, negative=False):
        """A size rounded toward zero."""
        if size == 0:
            return Single(Fraction(0), negative)
        steps, _, _, quantum = Single.in_steps(size)
        return Single(min(steps * power_of_two(quantum), LARGEST.size), negative)

    @staticmethod
    def in_steps(size):
        """size = (steps + rest / below) * 2^quantum, in the steps of its binade."""
        quantum = max(floor_log2(size), -126) - 23
        above, below = size.numerator << max(-quantum, 0), size.denominator << max(quantum, 0)
        return *divmod(above, below), below, quantum

    @staticmethod
    def of(number):
        """A Python int or Fraction, rounded."""
        return Single.nearest(abs(Fraction(number)), number < 0)

    @staticmethod
    def from_bits(bits):
        exponent, fraction = bits >> 23 & 0xff, bits & 0x7fffff
        if exponent == 0xff:
            size = NOT_A_NUMBER if fraction else INFINITY
        else:
            size = (fraction | (0x800000 if exponent else 0)) * power_of_two(max(exponent, 1) - 150)
        return Single(size, bool(bits >> 31))

    def bits(self):
        """The bit pattern; None for any NaN."""
        if self.is_nan:
            return None
        sign = 0x80000000 if self.negative else 0
        if self.is_infinite:
            return sign | 0x7f800000
        if self.size == 0:
            return sign
        exponent = max(floor_log2(self.size), -126)
        significand = int(self.size / power_of_two(exponent - 23))
        return sign | (significand + ((exponent + 126) << 23))     # the hidden bit adds one to the exponent

    is_nan = property(lambda self: self.size != self.size)
    is_infinite = property(lambda self: self.size == INFINITY)
    is_finite = property(lambda self: type(self.size) is Fraction)
    is_zero = property(lambda self: self.size == 0)

    def signed(self):
        """The exact value of a finite number."""
        return -self.size if self.negative else self.size

    def __neg__(self):
        return Single(self.size, not self.negative)

    def __abs__(self):
        return Single(self.size)

    def __mul__(self, other):
        negative = self.negative != other.negative
        if self.is_finite and other.is_finite:
            return Single.nearest(self.size * other.size, negative)
        if self.is_nan or other.is_nan or self.is_zero or other.is_zero:
            return NAN
        return Single(INFINITY, negative)

    def __truediv__(self, other):
        negative = self.negative != other.negative
        if self.is_nan or other.is_nan or (self.is_infinite and other.is_infinite):
            return NAN
        if self.is_infinite:
            return Single(INFINITY, negative)
        if other.is_infinite:
            return Single(Fraction(0), negative)
        if other.is_zero:
            return NAN if self.is_zero else Single(INFINITY, negative)
        return Single.nearest(self.size / other.size, negative)

    def plus(self, other, rounded):
        if self.is_finite and other.is_finite:
            total = self.signed() + other.signed()
            if total == 0:
                return Single(Fraction(0), self.negative and other.negative)
            return rounded(abs(total), total < 0)
        if self.is_nan or other.is_nan:
            return NAN
        if self.is_infinite and other.is_infinite and self.negative != other.negative:
            return NAN
        return self if self.is_infinite else other

    def __add__(self, other):
        return self.plus(other, Single.nearest)

    def __sub__(self, other):
        return self + -other

    def __lt__(self, other):
        """As C compares: false where either is NaN."""
        if self.is_nan or other.is_nan:
            return False
        a = -self.size if self.negative else self.size
        return a < (-other.size if other.negative else other.size)


NAN = Single(NOT_A_NUMBER)
ZERO = Single(Fraction(0))
ONE = Single.of(1)
LARGEST = Single.from_bits(0x7f7fffff)
SMALLEST_NORMAL = Single.from_bits(0x00800000)
SIX = Single.of(6)
SIXTH = ONE / SIX


def lesser(a, b):
    """C's fminf."""
    return b if a.is_nan or b < a else a


def bounded(x, low, high):
    """NaN stays NaN."""
    return low if x < low else high if high < x else x


def amax_of(values, nan_counts):
    """The largest magnitude; a NaN makes it NaN or is passed over."""
    if nan_counts and any(x.is_nan for x in values):
        return NAN
    return Single(max((x.size for x in values if not x.is_nan), default=Fraction(0)))


def exact_sum_rounded(total):
    """A sum that was not rounded before; zero is +0."""
    return Single.nearest(abs(total), total < 0)


# -------------------------------------------------------------------------------------------------------------------
# Formats. A code that means NaN is written None.

def goes_away(rounding, delta, odd, negative, random):
    """Whether a magnitude that lies `delta` of the way from its neighbour nearer zero goes to the other one."""
    if rounding == 'nearest_even':
        return 2 * delta > 1 or (2 * delta == 1 and odd)
    if rounding in ('toward_zero', 'toward_positive', 'toward_negative'):
        return delta > 0 and negative == (rounding == 'toward_negative') and rounding != 'toward_zero'
    if rounding == 'stochastic_midpoint8':
        return 512 * delta + 2 * random + 1 >= 512
    if rounding == 'stochastic_midpoint32':
        return 2 ** 33 * delta + 2 * random + 1 >= 2 ** 33
    if rounding == 'stochastic_floor8':
        return 256 * delta + random >= 256
    raise ValueError('unknown rounding ' + rounding)


def points_inward(rounding, negative):
    return rounding == 'toward_zero' or rounding == ('toward_positive' if negative else 'toward_negative')


class Table:
    """What all formats share: `values`, the finite magnitudes in the order of their codes 0, 1, 2, ..., and `beyond`,
    the magnitude that would come next."""

    def neighbour(self, size, rounding, negative, random):
        """The magnitude code that `size` rounds to, len(values) where that lies past the largest."""
        lower = bisect.bisect_right(self.values, size) - 1
        if lower == len(self.values) - 1:
            if size >= self.beyond:
                return len(self.values)
            upper = self.beyond
        else:
            upper = self.values[lower + 1]
        delta = (size - self.values[lower]) / (upper - self.values[lower])
        return lower + goes_away(rounding, delta, self.is_odd(lower), negative, random)

    def is_odd(self, code):
        return code % 2 == 1

    def largest(self):
        return Single(self.values[-1])


class Float(Table):
    """[sign] exponent fraction, with subnormals. `top`: `all` codes are finite; the one of all ones is `nan`; the
    largest exponent is infinity and NaN as in `ieee`."""

    def __init__(self, name, exponent_bits, fraction_bits, bias, sign, top):
        self.name, self.width = name, exponent_bits + fraction_bits + sign
        self.fraction_bits = fraction_bits
        magnitudes = 1 << (exponent_bits + fraction_bits)
        self.sign = magnitudes if sign else 0
        self.mask = magnitudes - 1
        finite = {'all': magnitudes, 'nan': magnitudes - 1, 'ieee': magnitudes - (1 << fraction_bits)}[top]
        self.infinity = finite if top == 'ieee' else None
        self.has_nan = top != 'all'

        def magnitude(code):
            exponent, fraction = divmod(code, 1 << fraction_bits)
            unit = power_of_two(max(exponent, 1) - bias - fraction_bits)
            return (fraction + (1 << fraction_bits if exponent else 0)) * unit
        self.values = [magnitude(code) for code in range(finite)]
        self.beyond = magnitude(finite)

    def decode(self, code):
        magnitude, negative = code & self.mask, bool(code & self.sign)
        if magnitude < len(self.values):
            return Single(self.values[magnitude], negative)
        return Single(INFINITY, negative) if magnitude == self.infinity else NAN

    def encode(self, x, rounding='nearest_even', overflow='saturate', random=0):
        if x.is_nan:
            return None if self.has_nan else len(self.values) - 1
        sign = self.sign if x.negative else 0
        code = len(self.values)
        if not x.is_infinite:
            code = self.neighbour(x.size, rounding, x.negative, random)
        if code == len(self.values):
            if overflow == 'saturate' or (x.is_finite and points_inward(rounding, x.negative)) or not self.has_nan:
                code -= 1
            elif self.infinity is None:
                return None
        return sign | code


class Power(Table):
    """E8M0: code c is 2^(c - 127), FF is NaN; no zero, no sign. Half-way goes up, or to the even code."""
    name, width, has_nan, fraction_bits = 'e8m0', 8, True, 0
    values = [power_of_two(code - 127) for code in range(255)]
    beyond = power_of_two(128)

    def __init__(self, ties_go_up=True):
        self.ties_go_up = ties_go_up

    def is_odd(self, code):
        return self.ties_go_up or code % 2 == 1

    def decode(self, code):
        return NAN if code == 255 else Single(self.values[code])

    def encode(self, x, rounding='nearest_even', overflow='saturate', random=0):
        if x.is_nan:
            return None
        if x.negative or x.size < self.values[0]:
            return 0
        code = 255 if x.is_infinite else self.neighbour(x.size, rounding, False, random)
        if code == 255 and (overflow == 'saturate' or (x.is_finite and points_inward(rounding, False))):
            return 254
        return None if code == 255 else code


class Integer(Table):
    """Two's complement fixed point, `width - 2` fraction bits. `full`: encoding uses the most negative code."""
    has_nan = False

    def __init__(self, name, width, full=False):
        self.name, self.width, self.full, self.fraction_bits = name, width, full, width - 2
        self.values = [Fraction(code, 1 << (width - 2)) for code in range(1 << (width - 1))]
        self.beyond = Fraction(2)

    def decode(self, code):
        if code >> (self.width - 1):
            return Single(Fraction((1 << self.width) - code, 1 << (self.width - 2)), True)
        return Single(self.values[code])

    def encode(self, x, rounding='nearest_even', overflow='saturate', random=0):
        if x.is_nan:
            return len(self.values) - 1
        limit = len(self.values) - (0 if x.negative and self.full else 1)
        steps = limit if x.is_infinite else min(limit, self.neighbour(x.size, rounding, x.negative, random))
        return -steps % (1 << self.width) if x.negative else steps


class Binary32:
    """Binary32 as the format of a block scale: the code is the number."""
    name, width = 'f32', 32

    def decode(self, code):
        return code

    def encode(self, x):
        return x


FORMATS = {f.name: f for f in (
    Float('e2m1', 2, 1, 1, True, 'all'), Float('e1m2', 1, 2, 1, True, 'all'), Float('e2m3', 2, 3, 1, True, 'all'),
    Float('e3m2', 3, 2, 3, True, 'all'), Float('e4m3', 4, 3, 7, True, 'nan'), Float('e5m2', 5, 2, 15, True, 'ieee'),
    Float('ue4m3', 4, 3, 7, False, 'nan'), Float('ue5m3', 5, 3, 15, False, 'nan'),
    Float('ue5m3_ieee', 5, 3, 15, False, 'ieee'), Float('bf16', 8, 7, 127, True, 'ieee'),
    Float('f16', 5, 10, 15, True, 'ieee'), Power(), Integer('int4', 4), Integer('int8', 8))}
BY_POLICY = {('e8m0', 'e8m0_tie_even'): Power(ties_go_up=False), ('int4', 'int_full'): Integer('int4', 4, full=True),
             ('int8', 'int_full'): Integer('int8', 8, full=True)}


def format_of(name, policy=None):
    return BY_POLICY.get((name, policy), FORMATS[name])


# -------------------------------------------------------------------------------------------------------------------
# Schemes. A scheme is a class of functions over:
#   t            what a tensor shares: t.reference, t.encode, t.decode, as far as the scheme has them
#   a            the amax of a block
#   scale, s     a scale's code and its value
# `quantum(scale, t)` is the number that one unit of an element stands for, for those who make adversarial data.

class Factors:
    reference = encode = decode = None


class Scheme:
    element, scale_format, shape = FORMATS['e2m1'], FORMATS['ue4m3'], (1, 16)
    stored = None             # which key of `dequantize` holds what the scheme stores of the tensor
    constant = False          # whether that is a constant, which depends on no reference
    nan_counts = True         # whether a NaN makes the block's amax NaN
    poisons = False           # whether a NaN or an infinity makes the block's scale NaN
    draws_scale = False       # whether a block's scale is rounded by a draw: `quantize` takes it then
    top = None                # what the largest element of a block becomes, where that is not the element's largest

    def __init__(self, policy=None, target=448):
        self.policy, self.target = policy, target

    @property
    def reads_reference(self):
        return bool(self.stored) and not self.constant

    def by_constant(self, a, constant):
        """a / constant, which tensor libraries compute as a * (1 / constant) on some devices."""
        if self.policy == 'scalar_reciprocal':
            return a * (ONE / constant)
        return a / constant

    def factors(self, reference):
        return Factors()

    def from_stored(self, datum):
        t = Factors()
        t.decode = datum
        return t

    def scale(self, a, t):
        """The scale's code, None for NaN."""
        raise NotImplementedError

    def scaled(self, x, scale, t):
        """The number that the element format rounds."""
        raise NotImplementedError

    def decoded(self, element, s, t):
        raise NotImplementedError

    def encode_element(self, x, scale, t, rounding, random):
        return self.element.encode(self.scaled(x, scale, t), rounding, 'saturate', random)

    def quantize(self, values, t, rounding, randoms):
        """(scale, codes) of a block; codes are None where the format leaves them open."""
        if self.poisons and not all(x.is_finite for x in values):
            return None, [None] * len(values)
        scale = self.scale(amax_of(values, self.nan_counts), t)
        return scale, [self.encode_element(x, scale, t, rounding, r) for x, r in zip(values, randoms)]

    def value(self, code, scale, t):
        if code is None or scale is None:
            return NAN
        return self.decoded(self.element.decode(code), self.scale_format.decode(scale), t)

    def scale_value(self, scale):
        return NAN if scale is None else self.scale_format.decode(scale)


class Paper(Scheme):
    """arXiv 2609.02846."""
    scale_format = FORMATS['ue5m3_ieee']
    stored = 'tensor_scale'

    def factors(self, reference):
        t = Factors()
        top = SIX * Single.of(self.target)
        t.encode = ONE if reference.is_zero else lesser(top / reference, LARGEST)
        t.decode = ONE / t.encode
        return t

    def scale(self, a, t):
        u = lesser(a * (t.encode * SIXTH), self.scale_format.largest())
        return self.scale_format.encode(u) or self.scale_format.encode(ONE)

    def scaled(self, x, scale, t):
        return x * lesser(ONE / (self.scale_value(scale) * t.decode), LARGEST)

    def decoded(self, element, s, t):
        if self.policy == 'dequant_scale_first':
            return element * (s * t.decode)
        return element * s * t.decode


class TransformerEngine(Scheme):
    stored = 'amax'
    nan_counts = False
    top_scale = 448

    def factors(self, reference):
        t = Factors()
        t.reference = reference
        t.encode = lesser(SIX * Single.of(self.top_scale) / reference, LARGEST)
        if reference.is_zero or t.encode.is_zero:
            t.encode = ONE
        t.decode = ONE / t.encode
        return t

    def from_stored(self, datum):
        return self.factors(datum)

    def scale(self, a, t):
        return self.scale_format.encode(lesser(a * (t.encode * SIXTH), LARGEST))

    def scaled(self, x, scale, t):
        return x * lesser(ONE / (self.scale_value(scale) * t.decode), LARGEST)

    def decoded(self, element, s, t):
        return element * (s * t.reference * (ONE / (SIX * Single.of(self.top_scale))))


class FourOverSix(TransformerEngine):
    top_scale = 256

    def quantize(self, values, t, rounding, randoms):
        base = amax_of(values, False) / SIX * t.encode
        candidates = []
        for ideal in (base, base * Single.of(Fraction(3, 2))):
            scale = self.scale_format.encode(lesser(ideal, Single.of(448)))
            codes = [self.encode_element(x, scale, t, rounding, r) for x, r in zip(values, randoms)]
            error = ZERO
            for x, code in zip(values, codes):
                value = self.element.decode(code) * self.scale_value(scale) * t.reference / Single.of(1536)
                error = error + abs(value - x)
            candidates.append((error, scale, codes))
        first, second = candidates
        return second[1:] if second[0] < first[0] else first[1:]


class TorchAO(Scheme):
    stored = 'tensor_scale'

    def factors(self, reference):
        t = Factors()
        t.decode = self.by_constant(reference, Single.of(2688))
        if t.decode.is_zero:
            t.decode = ONE
        return t

    def scale(self, a, t):
        ideal = self.by_constant(a, SIX) / t.decode
        return self.scale_format.encode(bounded(ideal, Single.of(Fraction(1, 64)), Single.of(448)))

    def scaled(self, x, scale, t):
        return x if x.is_zero else x * (ONE / t.decode / self.scale_value(scale))

    def decoded(self, element, s, t):
        return element * (t.decode * s)


class ModelOpt(TorchAO):
    def scale(self, a, t):
        ideal = a / (SIX * t.decode)
        return self.scale_format.encode(ONE if ideal.is_zero else ideal)

    def scaled(self, x, scale, t):
        return x / (self.scale_value(scale) * t.decode) + ZERO


class CompressedTensors(Scheme):
    stored = 'tensor_encode'

    def factors(self, reference):
        t = Factors()
        t.encode = ONE / (SMALLEST_NORMAL if reference < SMALLEST_NORMAL else reference) * Single.of(2688)
        if not t.encode.is_finite:
            t.encode = ONE
        return t

    def from_stored(self, datum):
        t = Factors()
        t.encode = datum
        return t

    def scale(self, a, t):
        code = self.scale_format.encode(t.encode * self.by_constant(a, SIX))
        return self.scale_format.encode(Single.of(Fraction(1, 8))) if code == 0 else code

    def scaled(self, x, scale, t):
        return x / (self.scale_value(scale) / t.encode) + ZERO

    def decoded(self, element, s, t):
        return element * (s / t.encode)


class MsEden(Paper):
    """arXiv 2601.22813, Quartet II: a scale with headroom, corrected by what the elements lost and rounded by a draw."""
    scale_format = FORMATS['ue4m3']
    poisons = True
    draws_scale = True
    top = SIX / Single.of(Fraction(17, 16) * Fraction(93, 100))

    def factors(self, reference):
        t = Factors()
        t.decode = reference / Single.of(Fraction(25599, 100)) / self.top
        if t.decode.is_zero:
            t.decode = ONE
        return t

    def scale(self, a, t):
        return self.scale_format.encode(a / self.top / t.decode) or self.scale_format.encode(ONE)

    def corrected(self, values, scale, codes, t):
        """The number whose rounding is stored; None where nothing is corrected."""
        squares = products = ZERO
        for x, code in zip(values, codes):
            y = self.scaled(x, scale, t)
            squares = squares + y * y
            products = products + y * self.element.decode(code)
        if products.is_zero:
            return None
        correction = squares / products
        return self.scale_value(scale) * (correction if correction.is_finite else Single(INFINITY))

    def quantize(self, values, t, rounding, randoms, scale_random=None):
        """Without a draw the scale is the one that the elements are encoded under."""
        scale, codes = super().quantize(values, t, rounding, randoms)
        if scale is None or scale_random is None:
            return scale, codes
        ideal = self.corrected(values, scale, codes, t)
        if ideal is not None:
            scale = self.scale_format.encode(ideal, 'stochastic_midpoint32', 'saturate', scale_random)
        return scale, codes


class Exact(Scheme):
    """Every rounding is that of the exact quotient."""
    stored = 'tensor_scale'
    poisons = True

    def factors(self, reference):
        t = Factors()
        t.reference = reference
        t.decode = Single.nearest(reference.size / (6 * self.target))
        if t.decode.is_zero:
            t.decode = ONE
        return t

    def scale(self, a, t):
        ideal = a.size / 6 if t.reference.is_zero else a.size * self.target / t.reference.size
        code = min(self.scale_format.neighbour(ideal, 'nearest_even', False, 0), len(self.scale_format.values) - 1)
        return 1 if code == 0 and not a.is_zero else code

    def scaled(self, x, scale, t):
        s = self.scale_value(scale)
        size = x.size if s.is_zero else x.size / (s.size * t.decode.size)
        return Single(size, x.negative)      # not rounded: the element format does that

    def decoded(self, element, s, t):
        return element * s * t.decode


class SingleLevel(Scheme):
    poisons = True

    def scale(self, a, t):
        return self.scale_format.encode(a / SIX)

    def scaled(self, x, scale, t):
        s = self.scale_value(scale)
        return Single(Fraction(0), x.negative) if s.is_zero else x / s

    def decoded(self, element, s, t):
        return element * s


class Mx(Scheme):
    scale_format, shape = FORMATS['e8m0'], (1, 32)
    poisons = True
    choice = 'floor'

    def __init__(self, policy=None, target=448):
        super().__init__(policy, target)
        self.element = format_of(self.element.name, policy)

    def scale(self, a, t):
        if a.is_zero:
            return 0
        largest = self.element.values[-1]
        if self.choice == 'ceil':
            exponent = floor_log2(a.size / largest)
            exponent += power_of_two(exponent) < a.size / largest
        else:
            exponent = floor_log2(a.size)
            if self.choice == 'even':     # amax is first rounded to the precision of an element
                step = power_of_two(exponent - self.element.fraction_bits)
                exponent = floor_log2(round_half_up(a.size / step) * step)
            exponent -= floor_log2(largest)
        return max(0, min(254, exponent + 127))

    def scaled(self, x, scale, t):
        return Single(x.size / self.scale_value(scale).size, x.negative)

    def decoded(self, element, s, t):
        return element * s


def round_half_up(number):
    return (2 * number + 1) // 2


class Folded(Mx):
    """arXiv 2610.00053: the whole grid under the power of two above the amax, its largest value left to the tensor."""
    stored, constant = 'tensor_scale', True
    halves = False            # a block whose amax is below 0.87 of the scale gets half of it

    def factors(self, reference):
        t = Factors()
        t.decode = SIXTH
        return t

    def scale(self, a, t):
        if a.is_zero:
            return 0
        exponent = floor_log2(a.size)
        exponent += power_of_two(exponent) < a.size
        if self.halves and a.size / power_of_two(exponent) < Single.of(Fraction(87, 100)).size:
            exponent -= 1
        return max(0, min(254, exponent + 127))

    def scaled(self, x, scale, t):
        return Single(x.size * self.element.values[-1] / self.scale_value(scale).size, x.negative)

    def decoded(self, element, s, t):
        return element * s * t.decode


class Ufp4(Scheme):
    element, scale_format = FORMATS['e1m2'], Binary32()

    def scale(self, a, t):
        s = a / Single.of(Fraction(7, 4))
        return ONE if s.is_zero else s

    def scaled(self, x, scale, t):
        return x / scale

    def decoded(self, element, s, t):
        return element * s


def variant(base, **facts):
    return type(base.__name__, (base,), facts)


SCHEMES = {
    'ue5m3_fp4': Paper,
    'ue5m3_fp4_2d': variant(Paper, shape=(16, 16)),
    'ue5m3_fp4_b32': variant(Paper, shape=(1, 32)),
    'ue5m3_fp4_b32_2d': variant(Paper, shape=(32, 32)),
    'nvfp4': TransformerEngine,
    'nvfp4_2d': variant(TransformerEngine, shape=(16, 16)),
    'nvfp4_4over6': FourOverSix,
    'nvfp4_torchao': TorchAO,
    'nvfp4_modelopt': ModelOpt,
    'nvfp4_compressed_tensors': CompressedTensors,
    'nvfp4_ms_eden': MsEden,
    'nvfp4_exact': Exact,
    'ue5m3_fp4_exact': variant(Exact, scale_format=FORMATS['ue5m3_ieee']),
    'nvfp4_single': SingleLevel,
    'ue5m3_single': variant(SingleLevel, scale_format=FORMATS['ue5m3']),
    'mxfp4': Mx,
    'mxfp4_even': variant(Mx, choice='even'),
    'mxfp4_ceil': variant(Mx, choice='ceil'),
    'mxfp4_folded': Folded,
    'mxfp4_folded_2d': variant(Folded, shape=(32, 32), halves=True),
    'mxfp6_e2m3': variant(Mx, element=FORMATS['e2m3']),
    'mxfp6_e3m2': variant(Mx, element=FORMATS['e3m2']),
    'mxfp8_e4m3': variant(Mx, element=FORMATS['e4m3']),
    'mxfp8_e5m2': variant(Mx, element=FORMATS['e5m2']),
    'mxfp8_e4m3_ceil': variant(Mx, element=FORMATS['e4m3'], choice='ceil'),
    'mxfp8_e5m2_ceil': variant(Mx, element=FORMATS['e5m2'], choice='ceil'),
    'mxint8': variant(Mx, element=FORMATS['int8']),
    'ufp4': Ufp4,
}


# -------------------------------------------------------------------------------------------------------------------
# Operations: from a case, a dict of strings, to a dict of the lists that it may expect.

def split(text):
    return text.split(',') if text else []


def read_singles(text):
    return [Single.from_bits(int(item, 16)) for item in split(text)]


def read_codes(text):
    return [int(item, 16) for item in split(text)]


def write_singles(numbers):
    return ['nan' if x.is_nan else '%08x' % x.bits() for x in numbers]


def write_codes(form, codes):
    if isinstance(form, Binary32):
        return write_singles(NAN if c is None else c for c in codes)
    digits = (form.width + 3) // 4
    return ['nan' if c is None else '%0*x' % (digits, c) for c in codes]


def write_scales(form, scales):
    """As codes, but a NaN byte is one in particular: all bits of the format set."""
    if isinstance(form, Binary32):
        return write_codes(form, scales)
    return write_codes(form, [(1 << form.width) - 1 if s is None else s for s in scales])


def read_double(text):
    """A binary64 number as an exact Single: the class does not mind how many bits a size has."""
    value = struct.unpack('>d', bytes.fromhex(text))[0]
    negative = bool(int(text, 16) >> 63)
    return Single(abs(value) if value != value or value in (INFINITY, -INFINITY) else abs(Fraction(value)), negative)


def read_randoms(case, count):
    return read_codes(case['random']) if 'random' in case else [0] * count


def encode(case):
    form = format_of(case['format'], case.get('policy'))
    values = [read_double(t) for t in split(case['in64'])] if 'in64' in case else read_singles(case['in'])
    codes = [form.encode(x, case.get('rounding', 'nearest_even'), case.get('overflow', 'saturate'), r)
             for x, r in zip(values, read_randoms(case, len(values)))]
    return {'codes': write_codes(form, codes)}


def decode(case):
    form = format_of(case['format'], case.get('policy'))
    return {'out': write_singles(form.decode(c) for c in read_codes(case['codes']))}


def scheme_of(case, key='scheme'):
    return SCHEMES[case.get(key, case['scheme'])](case.get('policy'), int(case.get('target', 448)))


class Grid:
    """The blocks of a rows x cols matrix: `blocks[i]` lists the row-major indices of its elements, in row-major order
    over the grid; `block_of[e]` is the block of element e."""

    def __init__(self, rows, cols, shape, axis='row'):
        height, width = shape if axis == 'row' else shape[::-1]
        across = -(-cols // width)
        self.blocks = [[] for _ in range(-(-rows // height) * across)]
        self.block_of = []
        for row in range(rows):
            for col in range(cols):
                block = row // height * across + col // width
                self.blocks[block].append(len(self.block_of))
                self.block_of.append(block)


def grid_of(scheme, case):
    return Grid(int(case['rows']), int(case['cols']), scheme.shape, case.get('axis', 'row'))


def dequantized(scheme, grid, codes, scales, t):
    return write_singles(scheme.value(code, scales[block], t) for code, block in zip(codes, grid.block_of))


def quantize(case):
    scheme = scheme_of(case)
    values = read_singles(case['in'])
    randoms = read_randoms(case, len(values))
    t = scheme.factors(read_singles(case['amax'])[0] if 'amax' in case else amax_of(values, False))
    grid = grid_of(scheme, case)
    scale_randoms = [(r,) for r in read_codes(case['scale_random'])] if scheme.draws_scale else [()] * len(grid.blocks)
    scales, codes = [], [None] * len(values)
    for block, scale_random in zip(grid.blocks, scale_randoms):
        scale, of_block = scheme.quantize([values[i] for i in block], t, case.get('rounding', 'nearest_even'),
                                          [randoms[i] for i in block], *scale_random)
        scales.append(scale)
        for i, code in zip(block, of_block):
            codes[i] = code
    result = {'scales': write_scales(scheme.scale_format, scales), 'out': dequantized(scheme, grid, codes, scales, t)}
    if None not in codes or scheme.element.has_nan:
        result['codes'] = write_codes(scheme.element, codes)
    if t.decode is not None:
        result['tensor_scale'] = write_singles([t.decode])
    if t.encode is not None:
        result['tensor_encode'] = write_singles([t.encode])
    return result


def dequantize(case):
    scheme = scheme_of(case)
    datum = case.get(scheme.stored, '3f800000') if scheme.stored == 'tensor_scale' else case.get(scheme.stored)
    t = scheme.from_stored(read_singles(datum)[0]) if datum else Factors()
    grid = grid_of(scheme, case)
    return {'out': dequantized(scheme, grid, read_codes(case['codes']), read_scales(scheme, case['scales']), t)}


def read_scales(scheme, text):
    return read_singles(text) if isinstance(scheme.scale_format, Binary32) else read_codes(text)


def gemm(case):
    m, n, k = (int(case[name]) for name in 'mnk')
    rows_of, width = {}, k
    for side, key, count in (('a', 'scheme', m), ('b', 'b_scheme', n)):
        scheme = scheme_of(case, key)
        codes, scales = read_codes(case[side + '_codes']), read_scales(scheme, case[side + '_scales'])
        grid = Grid(count, k, scheme.shape)
        numbers = [(scheme.element.decode(code), scheme.scale_value(scales[block]))
                   for code, block in zip(codes, grid.block_of)]
        rows_of[side] = [numbers[r * k:(r + 1) * k] for r in range(count)]
        width = min(width, scheme.shape[1])
    accumulate = ACCUMULATIONS[case['accumulate']]
    factors = [read_singles(case[side + '_tensor_scale'])[0] if side + '_tensor_scale' in case else ONE for side in 'ab']
    alpha = factors[0] * factors[1]
    return {'out': write_singles(accumulate(list(zip(row, column)), max(width, 1)) * alpha
                                 for row in rows_of['a'] for column in rows_of['b'])}


def exact_total(terms):
    """The rounded sum of element * scale * element * scale; a factor that is not finite makes it NaN."""
    total = Fraction(0)
    for (x, s), (y, u) in terms:
        if not (x.is_finite and s.is_finite and y.is_finite and u.is_finite):
            return NAN
        total += x.signed() * s.signed() * (y.signed() * u.signed())
    return exact_sum_rounded(total)


def exact_f32(terms, width):
    return exact_total(terms)


def blackwell_k64(terms, width):
    total = ZERO
    for start in range(0, len(terms), 64):
        total = total.plus(exact_total(terms[start:start + 64]), Single.truncated)
    return total


def f32_blocks(terms, width):
    """`width` elements share both scales."""
    total = ZERO
    for start in range(0, len(terms), width):
        run = terms[start:start + width]
        s, u = run[0][0][1], run[0][1][1]
        if not s.is_finite or not u.is_finite or not all(x.is_finite and y.is_finite for (x, _), (y, _) in run):
            return NAN
        dot = exact_sum_rounded(sum((x.signed() * y.signed() for (x, _), (y, _) in run), Fraction(0)))
        total = total + s * u * dot
    return total


ACCUMULATIONS = {'exact_f32': exact_f32, 'blackwell_k64': blackwell_k64, 'f32_blocks': f32_blocks}


def pack(case):
    bits, stream = int(case['bits']), ''
    for code in read_codes(case['codes']):
        stream += format(code, '0%db' % bits)[::-1]        # lowest bit first
    padded = stream + '0' * (-len(stream) % 8)
    return {'bytes': ['%02x' % int(padded[i:i + 8][::-1], 2) for i in range(0, len(padded), 8)]}


def layout(case):
    """The places of a 128x4 tile in the order of its bytes: row modulo 32, then row / 32, then column."""
    rows, cols, source = int(case['rows']), int(case['cols']), split(case['in'])
    result = []
    for tile_row in range(0, rows, 128):
        for tile_col in range(0, cols, 4):
            for low in range(32):
                for high in range(4):
                    for column in range(tile_col, tile_col + 4):
                        row = tile_row + 32 * high + low
                        result.append(source[row * cols + column] if row < rows and column < cols else '00')
    return {'bytes': result}


def hadamard(case):
    """Sums that are exact, so that their order does not matter."""
    size, values = int(case['size']), read_singles(case['in'])
    signs = split(case['signs']) if 'signs' in case else ['+'] * size
    half_power = size.bit_length() - 1
    factor = Single.of(power_of_two(-(half_power // 2)))
    if half_power % 2:
        factor = factor * Single.from_bits(0x3f3504f3)      # the binary32 number nearest to sqrt(1/2)
    out = []
    for start in range(0, len(values), size):
        line = [-x.signed() if sign == '-' else x.signed() for x, sign in zip(values[start:], signs)]
        step = 1
        while step < size:       # the recursive definition [H H; H -H], from the inside out
            line = [line[i - step] - line[i] if i & step else line[i] + line[i + step] for i in range(size)]
            step *= 2
        out += [exact_sum_rounded(x) * factor for x in line]
    return {'out': write_singles(out)}


# op -> (what computes it, input keys, expected keys)
OPERATIONS = {
    'encode': (encode, 'format in in64 rounding overflow random', 'codes'),
    'decode': (decode, 'format codes', 'out'),
    'quantize': (quantize, 'scheme rows cols in amax axis rounding random scale_random target',
                 'scales codes tensor_scale tensor_encode out'),
    'dequantize': (dequantize, 'scheme rows cols axis codes scales amax tensor_encode tensor_scale', 'out'),
    'gemm': (gemm, 'scheme b_scheme m n k accumulate a_codes a_scales a_tensor_scale b_codes b_scales b_tensor_scale',
             'out'),
    'pack': (pack, 'bits codes', 'bytes'),
    'layout': (layout, 'name rows cols in', 'bytes'),
    'hadamard': (hadamard, 'size signs in', 'out'),
}


# -------------------------------------------------------------------------------------------------------------------
# Files.

HEADER = 'microscale-vectors 1'


class Malformed(Exception):
    pass


def expected_keys(case):
    return [key for key in OPERATIONS[case['op']][2].split() if key in case]


def read_case(line):
    case = {}
    for field in line.split(' '):
        key, equals, value = field.partition('=')
        if not equals or key in case:
            raise Malformed('bad field ' + field)
        case[key] = value
    if 'id' not in case or case.get('op') not in OPERATIONS:
        raise Malformed('a case needs an id and a known op')
    _, inputs, expected = OPERATIONS[case['op']]
    for key in case:
        if key not in ('id', 'op', 'policy') and key not in inputs.split() + expected.split():
            raise Malformed('unknown key ' + key)
    if not expected_keys(case):
        raise Malformed('nothing is expected')
    return case


def read_cases(path):
    with open(path, encoding='ascii') as lines:
        for number, line in enumerate(lines, 1):
            line = line.rstrip('\n')
            if number == 1 and line != HEADER:
                raise Malformed('%s:1: the first line is not %r' % (path, HEADER))
            if number > 1 and line and not line.startswith('#'):
                try:
                    yield number, read_case(line)
                except Malformed as problem:
                    raise Malformed('%s:%d: %s' % (path, number, problem)) from None


def compute(case):
    return OPERATIONS[case['op']][0](case)


def same(expected, computed):
    """Lists are equal but for leading zeros."""
    return [t.lstrip('0') for t in expected] == [t.lstrip('0') for t in computed]


def check(paths):
    cases = differences = 0
    for path in paths:
        for number, case in read_cases(path):
            cases += 1
            result = compute(case)
            for key in expected_keys(case):
                if not same(split(case[key]), result.get(key, [])):
                    differences += 1
                    print('%s:%d: %s %s: expected %s, computed %s'
                          % (path, number, case['id'], key, case[key], ','.join(result.get(key, ['nothing']))))
    print('%d cases, %d differences' % (cases, differences))
    return 1 if differences else 0


def main(arguments):
    if len(arguments) < 2 or arguments[0] != 'check':
        print(__doc__, file=sys.stderr)
        return 2
    try:
        return check(arguments[1:])
    except (Malformed, OSError) as problem:
        print(problem, file=sys.stderr)
        return 2


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
