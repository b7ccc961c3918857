// Blocks, scale rules and schemes in constant evaluation: the goldens of the papers, zeros, non-finite blocks, tails,
// and what composes to a scheme.
#include <cstdint>
#include <microscale/block/quantize_block.hpp>
#include <microscale/block/rule_adaptors.hpp>
#include <microscale/block/schemes.hpp>
#include <type_traits>

namespace ms = microscale;

namespace {

template <class S>
struct numbers {
  float x[S::block::elements] = {};
};

// A block whose first elements are given, the others zero.
template <class S, class... Floats>
constexpr ms::quantized_block<S> quantized(float reference, Floats... first) {
  const numbers<S> in{{first...}};
  return ms::quantize_block<S>(in.x, reference);
}

template <class S>
constexpr numbers<S> dequantized(const ms::quantized_block<S>& q, float reference) {
  numbers<S> out;
  ms::dequantize_block(q, S::factors(reference), out.x);
  return out;
}

template <class S>
constexpr bool is_block(const ms::quantized_block<S>& q, int scale, int code0, int code1 = 0, int code2 = 0,
                        int code3 = 0) {
  return q.scale == scale && q.codes[0] == code0 && q.codes[1] == code1 && q.codes[2] == code2 && q.codes[3] == code3;
}

// numerics.md, section 3: the two goldens of arXiv 2609.02846's order of operations.
constexpr float a = 7.209771652307365e-15f, g = 8.30072435974513e-17f;
static_assert(ms::fp32::mul(a, ms::fp32::mul(ms::ue5m3_fp4::factors(g).encode, ms::fp32::div(1.0f, 6.0f))) == 38912.0f);
static_assert(ms::ue5m3_ieee::decode(quantized<ms::ue5m3_fp4>(g, a).scale) == 40960.0f);
constexpr auto golden =
    quantized<ms::ue5m3_fp4>(4.857566965417253e-19f, 8.410989948970382e-08f, 2.7757528175464845e-18f);
static_assert(ms::ue5m3_ieee::decode(golden.scale) == 61440.0f && golden.codes[0] == 7 && golden.codes[1] == 0);

// A reference so small that the encode multiplier is infinite: zeros stay zeros under the rule's own scale for them,
// and nothing else clips.
template <class Rule, class Policy>
using tiny = ms::scheme<ms::e2m1, ms::ue4m3, ms::block<1, 16>, Rule, Policy>;
template <class Rule, class Policy>
constexpr bool survives_an_infinite_factor(int scale_of_zero) {
  using S = tiny<Rule, Policy>;
  return ms::fp32::is_infinite(S::factors(1e-37f).encode) &&
         is_block(quantized<S>(1e-37f, 0.0f, -0.0f), scale_of_zero, 0, 8) &&
         is_block(quantized<S>(1e-37f, 1e-37f, -5e-38f), 0x7E, 7, 0xD);
}
static_assert(survives_an_infinite_factor<ms::amax_over_max, ms::decode_ratio<>>(0x00));
static_assert(survives_an_infinite_factor<ms::amax_over_max, ms::exact_ratio<>>(0x00));
static_assert(survives_an_infinite_factor<ms::amax_over_max_or_one, ms::decode_ratio<>>(0x38));
static_assert(survives_an_infinite_factor<ms::amax_over_max_rounded<ms::toward_positive>, ms::decode_ratio<>>(0x00));

// Public reports: decide by the quotient, by the stored scale, and by |x|.
static_assert(is_block(quantized<ms::nvfp4_single>(1, 11.25f, 2.34375f, 4.6875f, 9.375f), 0x3F, 7, 2, 4, 6));
static_assert(is_block(quantized<ms::nvfp4_single>(1, 10.5f, 0x1.87FFFEp1f), 0x3E, 7, 3));
static_assert(is_block(quantized<ms::nvfp4_single>(1, 5.1f, 1.09f), 0x36, 7, 2));
static_assert(dequantized(quantized<ms::nvfp4_single>(1, 5.1f, 1.09f), 1).x[0] == 5.25f);
static_assert(is_block(quantized<ms::nvfp4_single>(1, -12.0f, 1.0f), 0x40, 0xF, 1));
static_assert(dequantized(quantized<ms::nvfp4_single>(1, -12.0f, 1.0f), 1).x[0] == -12.0f);
static_assert(is_block(quantized<ms::ue5m3_single>(1, 0.005f), 0x26, 7));
static_assert(is_block(quantized<ms::nvfp4_single>(1, 0.005f, -0.005f), 0x00, 0, 8));
static_assert(is_block(quantized<ms::mxfp4>(1, 7.999f), 127, 7) && is_block(quantized<ms::mxfp4>(1, 2.2f), 126, 6));
static_assert(dequantized(quantized<ms::mxfp4>(1, 2.2f), 1).x[0] == 2.0f);
static_assert(is_block(quantized<ms::mxfp8_e4m3>(1, 957.0f), 128, 0x7E) &&
              is_block(quantized<ms::mxfp8_e4m3_ceil>(1, 957.0f), 129, 0x77) &&
              is_block(quantized<ms::mxfp8_e5m2>(1, 127.99999f), 118, 0x7B));
static_assert(is_block(quantized<ms::mxfp8_e4m3>(1, 2.8094e-36f, -7.6774e-38f, 9.1835e-40f), 0, 0x7E, 0xD5, 0x22));
static_assert(is_block(quantized<ms::mxfp4_even>(1, 7.0f), 128, 6) && is_block(quantized<ms::mxfp4>(1, 7.0f), 127, 7) &&
              is_block(quantized<ms::mxfp4_ceil>(1, 6.0f), 127, 7) &&
              is_block(quantized<ms::mxfp4_ceil>(1, 0x1.800002p2f), 128, 5));

// Zeros: the scale byte of each scheme, and the sign of a zero.
static_assert(is_block(quantized<ms::nvfp4>(1, 0.0f, -0.0f), 0x00, 0, 8));
static_assert(is_block(quantized<ms::ue5m3_fp4>(1, 0.0f, -0.0f), 0x78, 0, 8));
static_assert(is_block(quantized<ms::nvfp4_torchao>(1, 0.0f, -0.0f), 0x08, 0, 8));
static_assert(is_block(quantized<ms::nvfp4_modelopt>(1, 0.0f, -0.0f), 0x38, 0, 0));
static_assert(is_block(quantized<ms::nvfp4_compressed_tensors>(1, 0.0f), 0x20, 0));
static_assert(is_block(quantized<ms::nvfp4_exact>(1, 0.0f, -0.0f), 0x00, 0, 8));
static_assert(is_block(quantized<ms::mxfp4>(1, 0.0f, -0.0f), 0x00, 0, 8));
static_assert(quantized<ms::ufp4>(1, 0.0f).scale == 0x3F800000);
// Zeros under references so small that a factor overflows: they stay zeros.
static_assert(is_block(quantized<ms::ue5m3_fp4>(1e-45f, 0.0f, -0.0f, 1.0f), 0xF7, 0, 8, 7));
static_assert(is_block(quantized<ms::nvfp4_torchao>(0.0f, 0.0f, -0.0f), 0x08, 0, 8));
static_assert(is_block(quantized<ms::nvfp4>(1e-45f, 0.0f, -0.0f), 0x00, 0, 8));
static_assert(ms::nvfp4::factors(0).encode == 1 && ms::nvfp4::factors(ms::fp32::infinity()).encode == 1);
static_assert(ms::nvfp4::factors(1e-45f).encode == ms::fp32::largest && ms::nvfp4::factors(2688).decode == 1);
static_assert(ms::ue5m3_fp4::factors(0).encode == 1 && ms::nvfp4_torchao::factors(0).decode == 1);
static_assert(ms::ue5m3_fp4::factors(6, 2048).encode == 2048 && ms::ue5m3_fp4::factors(6).encode == 448);
static_assert(ms::nvfp4_4over6::factors(1536).encode == 1 && ms::nvfp4_4over6::factors(1536).target == 256);

// Whichever factor a policy computes first, the other is its reciprocal, rounded; reference and target are what was
// given.
template <class S>
constexpr bool has_factors(float amax, float encode, float decode, int target) {
  const ms::tensor_factors t = S::factors(amax);
  return t.reference == amax && t.encode == encode && t.decode == decode && t.target == target;
}
constexpr float reference = 806.4f;  // 2688 * 0.3, rounded
constexpr float up = ms::fp32::div(2688, reference), down = ms::fp32::div(reference, 2688);
constexpr float by_reciprocal = ms::fp32::mul(reference, ms::fp32::div(1, 2688));
constexpr float by_product = ms::fp32::mul(ms::fp32::div(1, reference), 2688);
constexpr float over(float x) { return ms::fp32::div(1, x); }
static_assert(has_factors<ms::ue5m3_fp4>(reference, up, over(up), 448) &&
              has_factors<ms::nvfp4>(reference, up, over(up), 448));
static_assert(has_factors<ms::nvfp4_torchao>(reference, over(down), down, 448));
static_assert(has_factors<ms::nvfp4_torchao_reciprocal>(reference, over(by_reciprocal), by_reciprocal, 448));
static_assert(has_factors<ms::nvfp4_compressed_tensors>(reference, by_product, over(by_product), 448));
static_assert(has_factors<ms::nvfp4_exact>(reference, over(down), down, 448));
static_assert(has_factors<ms::mxfp4>(1, 1, 1, 1));

// What a tensor stores is what its scheme decodes from.
static_assert(ms::nvfp4::stored(ms::nvfp4::factors(3.0f)) == 3.0f);
static_assert(ms::nvfp4::decode_multiplier(2688.0f) == 1.0f);
static_assert(ms::nvfp4_torchao::stored(ms::nvfp4_torchao::factors(1344.0f)) == 0.5f);
static_assert(ms::nvfp4_compressed_tensors::stored(ms::nvfp4_compressed_tensors::factors(1344.0f)) == 2.0f);
static_assert(ms::nvfp4_compressed_tensors::decode_multiplier(4.0f) == 0.25f);
static_assert(ms::ue5m3_fp4::decode_multiplier(0.25f) == 0.25f && ms::mxfp4::decode_multiplier(123.0f) == 1.0f);
static_assert(ms::nvfp4::has_tensor_scale && !ms::mxfp4::has_tensor_scale && !ms::nvfp4_single::has_tensor_scale);

// 4over6 takes the second candidate only where its error is smaller: {4, 4, 4} fit 4 exactly under the scale 1.5 base.
static_assert(ms::ue4m3::decode(quantized<ms::nvfp4_4over6>(1536, 4.0f, 3.0f, 2.0f).scale) == 1.0f);
static_assert(ms::ue4m3::decode(quantized<ms::nvfp4_4over6>(1536, 6.0f, 3.0f, 2.0f).scale) == 1.0f);

// A NaN or an infinity, under the four policies.
constexpr float nan = ms::fp32::quiet_nan(), inf = ms::fp32::infinity();
template <class S, ms::nonfinite Policy>
using with = ms::with_nonfinite<S, Policy>;
template <class S>
constexpr bool is_poisoned(const ms::quantized_block<S>& q, int scale, int code) {
  for (const auto c : q.codes) {
    if (c != code) return false;
  }
  return q.scale == scale && q.has_nonfinite;
}
static_assert(is_poisoned(quantized<ms::mxfp4>(1, 1.0f, nan, 2.0f), 0xFF, 7));
static_assert(is_poisoned(quantized<ms::mxfp4>(1, inf), 0xFF, 7));
static_assert(is_poisoned(quantized<ms::mxfp8_e4m3>(1, 1.0f, nan), 0xFF, 0x7F));
static_assert(is_poisoned(quantized<ms::nvfp4_single>(1, 1.0f, nan), 0x7F, 7));
static_assert(is_poisoned(quantized<with<ms::nvfp4, ms::nonfinite::reject>>(1, 1.0f, -inf), 0x7F, 7));
static_assert(is_block(quantized<ms::nvfp4>(6, 6.0f, nan, 3.0f, -nan), 0x7E, 7, 7, 5, 7));
static_assert(is_block(quantized<with<ms::mxfp8_e4m3, ms::nonfinite::saturate>>(1, inf, -inf, 1.0f, nan), 0xF6, 0x7E,
                       0xFE, 0, 0x7F));
static_assert(is_block(quantized<with<ms::nvfp4_single, ms::nonfinite::saturate>>(1, 0.0f, nan), 0, 0, 7));
static_assert(is_block(quantized<with<ms::nvfp4_exact, ms::nonfinite::owner>>(1, 1.0f, nan), 0x7F, 0, 7));
static_assert(quantized<ms::ufp4>(1, inf).scale == 0x7F800000 && quantized<ms::ufp4>(1, inf).codes[1] == 0);
static_assert(!quantized<ms::nvfp4>(1, 1.0f).has_nonfinite && quantized<ms::nvfp4>(1, -inf).has_nonfinite);
static_assert(ms::fp32::is_nan(dequantized(quantized<ms::mxfp4>(1, nan), 1).x[1]));

// Tails: elements outside the extent are neither read nor written, and padding has code 0.
constexpr bool tail_is_left_alone() {
  numbers<ms::nvfp4_single> in;
  for (float& x : in.x) x = 1e9f;
  in.x[0] = 6.0f, in.x[1] = -3.0f, in.x[2] = 0.5f;
  const auto q = ms::quantize_block<ms::nvfp4_single>(in.x, 1.0f, ms::nearest_even{}, ms::no_draws{}, {1, 3});
  if (q.scale != 0x38 || q.codes[0] != 7 || q.codes[1] != 0xD || q.codes[2] != 1) return false;
  numbers<ms::nvfp4_single> out;
  for (float& x : out.x) x = 5.0f;
  ms::dequantize_block(q, ms::nvfp4_single::factors(1), out.x, {1, 3});
  for (int i = 3; i < 16; ++i) {
    if (q.codes[i] != 0 || out.x[i] != 5.0f) return false;
  }
  return out.x[0] == 6.0f && out.x[1] == -3.0f && out.x[2] == 0.5f;
}
static_assert(tail_is_left_alone());

constexpr bool square_tail_is_left_alone() {
  numbers<ms::nvfp4_2d> in;
  for (float& x : in.x) x = nan;
  for (int r = 0; r < 3; ++r) {
    for (int c = 0; c < 2; ++c) in.x[r * 16 + c] = static_cast<float>(r + c);
  }
  const auto q = ms::quantize_block<ms::nvfp4_2d>(in.x, 3.0f, ms::nearest_even{}, ms::no_draws{}, {3, 2});
  if (q.has_nonfinite || q.scale != 0x7E || q.codes[0] != 0 || q.codes[33] != 7 || q.codes[2] != 0) return false;
  return q.codes[17] == q.codes[32] && q.codes[1] == 4 && q.codes[48] == 0;
}
static_assert(square_tail_is_left_alone());

// A stochastic rounding by draws that are positions' own.
constexpr bool rounds_by_position() {
  numbers<ms::mxfp4> in;
  for (float& x : in.x) x = 2.5f;
  in.x[0] = 6.0f;
  const ms::stochastic_midpoint8 rounding{.seed = 7, .stream = 3};
  const auto q = ms::quantize_block<ms::mxfp4>(
      in.x, 1.0f, rounding, ms::block_draws<ms::stochastic_midpoint8, ms::mxfp4::block>(rounding, 5, 32, 50));
  for (int i = 1; i < 32; ++i) {
    const std::uint32_t r = ms::draw<8>(rounding.key(), ms::element_position(5, 32 + static_cast<unsigned>(i), 50));
    if (q.codes[i] != (r >= 128 ? 5 : 4)) return false;
  }
  return true;
}
static_assert(rounds_by_position());

// A format and a scheme of the user's own, each one declaration.
struct ue3m4 : ms::minifloat<ms::float_layout{
                   .exponent_bits = 3, .mantissa_bits = 4, .bias = 3, .has_sign = false, .top = ms::specials::none}> {};
using mine = ms::scheme<ms::e2m1, ue3m4, ms::block<1, 16>, ms::amax_over_max, ms::no_tensor_scale>;
static_assert(ms::quantization_scheme<mine> && mine::policy == ms::nonfinite::poison && !mine::has_tensor_scale);
static_assert(is_block(quantized<mine>(1, 6.0f, -2.5f, 5.0f, 0.75f), 0x30, 7, 0xC, 6, 2));
static_assert(is_poisoned(quantized<mine>(1, 1.0f, nan), 0x7F, 7));  // no NaN in the scale format: the largest scale

template <class S>
constexpr bool is_kept = ms::quantization_scheme<S>&& std::is_trivially_copyable_v<ms::quantized_block<S>>;
static_assert(is_kept<ms::nvfp4> && is_kept<ms::nvfp4_2d> && is_kept<ms::mxfp4> && is_kept<ms::ufp4> && is_kept<mine>);
static_assert(!ms::quantization_scheme<ms::e2m1> && !ms::quantization_scheme<int>);
static_assert(std::is_trivially_copyable_v<ms::tensor_factors> && sizeof(ms::tensor_factors) == 16);
static_assert(std::is_trivially_copyable_v<ms::block_extent> && sizeof(ms::block_extent) == 8);
static_assert(sizeof(ms::quantized_block<ms::nvfp4>) == 18 && sizeof(ms::quantized_block<ms::ufp4>) == 24);
static_assert(ms::nvfp4_2d::block::is_square && !ms::nvfp4::block::is_square && ms::mxfp4::block::elements == 32 &&
              ms::ue5m3_fp4_b32_2d::block::elements == 1024);

// A scheme takes elements with a sign, and a policy as its tensor scale; anything else is refused by name.
template <class Element, class Scale, class TensorScale>
concept composes = requires {
  typename ms::scheme<Element, Scale, ms::block<1, 16>, ms::amax_over_max, TensorScale>;
};
static_assert(composes<ms::e2m1, ms::ue4m3, ms::no_tensor_scale> && composes<ms::int4, ms::f32, ms::stored_amax<>>);
static_assert(!composes<ms::ue4m3, ms::ue4m3, ms::no_tensor_scale> && !composes<ms::e2m1, int, ms::no_tensor_scale> &&
              !composes<ms::e2m1, ms::ue4m3, int>);

}  // namespace
