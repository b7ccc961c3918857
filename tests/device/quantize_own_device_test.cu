// Schemes of a user's own on the GPU: odd block shapes, formats of every width, other policies for NaN and infinity.
#include <microscale/block/rule_adaptors.hpp>

#include "tensor_test.cuh"

namespace {

namespace ms = microscale;
using ms::block;

struct ue3m4 : ms::minifloat<ms::float_layout{
                   .exponent_bits = 3, .mantissa_bits = 4, .bias = 3, .has_sign = false, .top = ms::specials::none}> {};
struct e1m1 : ms::minifloat<ms::float_layout{.exponent_bits = 1, .mantissa_bits = 1, .bias = 0}> {};  // three bits
struct e3m3 : ms::minifloat<ms::float_layout{.exponent_bits = 3, .mantissa_bits = 3, .bias = 3}> {};  // seven

using one_by_two = ms::scheme<ms::e2m1, ue3m4, block<1, 2>, ms::amax_over_max>;
using one_by_six = ms::scheme<ms::e2m1, ms::ue4m3, block<1, 6>, ms::amax_over_max, ms::encode_ratio<>>;
using one_by_24 = ms::scheme<e1m1, ms::ue5m3, block<1, 24>, ms::exact_rule, ms::exact_ratio<>>;
using one_by_128 = ms::scheme<e3m3, ms::f32, block<1, 128>, ms::amax_over_max_or_one>;
using one_by_1024 = ms::scheme<ms::int4, ms::bf16, block<1, 1024>, ms::amax_over_max>;
using wide_elements = ms::scheme<ms::bf16, ms::ue4m3, block<1, 16>, ms::amax_over_max, ms::decode_ratio<>>;
using two_by_two = ms::scheme<ms::e4m3, ms::e8m0_tie_even, block<2, 2>, ms::mx_rule<ms::mx_scale::even>>;
using square_24 = ms::scheme<ms::e3m2, ms::ue4m3, block<24, 24>, ms::modelopt_rule, ms::decode_ratio<>>;
using square_64 = ms::scheme<ms::e2m1, ms::ue4m3, block<64, 64>, ms::torchao_rule<>, ms::decode_ratio<>>;
using searched_square = ms::with_block<ms::nvfp4_4over6, block<16, 16>>;
using searched_long = ms::with_block<ms::nvfp4_4over6, block<1, 48>>;
using searched_mx = ms::scheme<ms::e4m3, ms::ue5m3, block<1, 32>,
                               ms::search_scale<ms::amax_over_max, ms::squared_error, 1, 1>, ms::exact_ratio<>>;
using rejecting = ms::with_nonfinite<ms::nvfp4, ms::nonfinite::reject>;
using saturating = ms::with_nonfinite<ms::nvfp4, ms::nonfinite::saturate>;
using saturating_fp8 = ms::with_nonfinite<ms::mxfp8_e4m3, ms::nonfinite::saturate>;
using owned_mx = ms::with_nonfinite<ms::mxfp8_e5m2, ms::nonfinite::owner>;
using poisoning = ms::with_nonfinite<ms::ue5m3_fp4_b32_2d, ms::nonfinite::poison>;

}  // namespace

int main(int argc, char** argv) {
  using namespace device_test;
  need_gpu();
  results r;
  quantize_tester t(r, effort_of(argc, argv));
  test_scheme<one_by_two, true>(t, r, "e2m1, 1x2, scales without NaN");
  test_scheme<one_by_six>(t, r, "e2m1, 1x6");
  test_scheme<one_by_24>(t, r, "e1m1, 1x24, exact");
  test_scheme<one_by_128>(t, r, "e3m3, 1x128, f32 scales");
  test_scheme<one_by_1024>(t, r, "int4, 1x1024, bf16 scales");
  test_scheme<wide_elements>(t, r, "bf16, 1x16");
  test_scheme<two_by_two>(t, r, "e4m3, 2x2");
  test_scheme<square_24>(t, r, "e3m2, 24x24");
  test_scheme<square_64>(t, r, "e2m1, 64x64");
  test_scheme<searched_square>(t, r, "nvfp4_4over6, 16x16");
  test_scheme<searched_long>(t, r, "nvfp4_4over6, 1x48");
  test_scheme<rejecting>(t, r, "nvfp4, reject");
  test_scheme<saturating>(t, r, "nvfp4, saturate");
  test_scheme<saturating_fp8>(t, r, "mxfp8_e4m3, saturate");
  test_scheme<owned_mx>(t, r, "mxfp8_e5m2, owner");
  test_scheme<poisoning>(t, r, "ue5m3_fp4_b32_2d, poison");
  // Scales that are corrected and drawn.
  const scheme_facts eden = facts_of<ms::nvfp4_ms_eden>("nvfp4_ms_eden");
  test_rounding<ms::nvfp4_ms_eden, ms::with_scale_draws<>, true, float>(t, eden, "with_scale_draws");
  test_rounding<ms::nvfp4_ms_eden, ms::with_scale_draws<ms::stochastic_midpoint8>, false, bf16>(
      t, eden, "with_scale_draws of stochastic_midpoint8");
  test_rounding<ms::nvfp4_ms_eden, ms::with_scale_draws<ms::with_stream_offset<ms::stochastic_midpoint16>>, false,
                float>(t, eden, "with_scale_draws of stochastic_midpoint16 from an offset");
  test_rounding<ms::nvfp4_ms_eden, ms::with_stream_offset<ms::with_scale_draws<ms::stochastic_midpoint16>>, false,
                float>(t, eden, "with_scale_draws of stochastic_midpoint16, both from an offset");
  test_dequantize<ms::nvfp4_ms_eden>(t, r, eden);
  r.end_group("nvfp4_ms_eden");
  test_scheme<searched_mx>(t, r, "mxfp8_e4m3, searched");
  return r.finish();
}
