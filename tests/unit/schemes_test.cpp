// Every scheme with a tensor scale, and the single-level ones, against the model: scales, codes and decoded values.
#include <microscale/block/schemes.hpp>

#include "support/held_to_model.hpp"

using held_to_model::on_adversarial_blocks;
using held_to_model::on_every_policy;
namespace ms = microscale;

namespace {

constexpr int many = 2800, few = 280;

const model::scheme paper{.how = model::rule::paper, .scale = model::ue5m3_ieee};
const model::scheme te{.how = model::rule::te};
const model::scheme four_over_six{.how = model::rule::four_over_six, .target = 256};
const model::scheme torchao{.how = model::rule::torchao};
const model::scheme modelopt{.how = model::rule::modelopt};
const model::scheme compressed_tensors{.how = model::rule::compressed_tensors};
const model::scheme exact{.how = model::rule::exact, .policy = model::nonfinite::poison};
const model::scheme single{.how = model::rule::single, .policy = model::nonfinite::poison};
const model::scheme ufp4{.how = model::rule::ufp4, .element = model::e1m2};

model::scheme under(model::scheme s, const model::format& scale) {
  s.scale = scale;
  return s;
}
model::scheme by_reciprocal(model::scheme s) {
  s.reciprocal = true;
  return s;
}
model::scheme scale_first(model::scheme s) {
  s.scale_first = true;
  return s;
}

}  // namespace

TEST_CASE("ue5m3_fp4 in one and two dimensions") {
  on_adversarial_blocks<ms::ue5m3_fp4>(paper, many, 1);
  on_adversarial_blocks<ms::ue5m3_fp4_b32>(paper, many / 2, 2);
  on_adversarial_blocks<ms::ue5m3_fp4_2d>(paper, few, 3);
  on_adversarial_blocks<ms::ue5m3_fp4_b32_2d>(paper, few / 4, 4);
  on_adversarial_blocks<ms::ue5m3_fp4_scale_first>(scale_first(paper), few, 5);
  on_every_policy<ms::ue5m3_fp4>(paper, few, 6);
}

TEST_CASE("nvfp4 as TransformerEngine computes it") {
  on_adversarial_blocks<ms::nvfp4>(te, many, 11);
  on_adversarial_blocks<ms::nvfp4_2d>(te, few, 12);
  on_every_policy<ms::nvfp4>(te, few, 13);
  on_every_policy<ms::nvfp4_2d>(te, few / 4, 14);
}

TEST_CASE("nvfp4_4over6") {
  on_adversarial_blocks<ms::nvfp4_4over6>(four_over_six, many, 21);
  on_every_policy<ms::nvfp4_4over6>(four_over_six, few, 22);
}

TEST_CASE("nvfp4 as torchao, ModelOpt and compressed-tensors compute it") {
  on_adversarial_blocks<ms::nvfp4_torchao>(torchao, many, 31);
  on_adversarial_blocks<ms::nvfp4_torchao_reciprocal>(by_reciprocal(torchao), few, 32);
  on_every_policy<ms::nvfp4_torchao>(torchao, few, 33);
  on_adversarial_blocks<ms::nvfp4_modelopt>(modelopt, many, 34);
  on_adversarial_blocks<ms::nvfp4_modelopt_reciprocal>(by_reciprocal(modelopt), few, 35);
  on_every_policy<ms::nvfp4_modelopt>(modelopt, few, 36);
  on_adversarial_blocks<ms::nvfp4_compressed_tensors>(compressed_tensors, many, 37);
  on_adversarial_blocks<ms::nvfp4_compressed_tensors_reciprocal>(by_reciprocal(compressed_tensors), few, 38);
  on_every_policy<ms::nvfp4_compressed_tensors>(compressed_tensors, few, 39);
}

TEST_CASE("the exact schemes, against exact comparisons in binary64") {
  on_adversarial_blocks<ms::nvfp4_exact>(exact, many, 41);
  on_adversarial_blocks<ms::ue5m3_fp4_exact>(under(exact, model::ue5m3_ieee), many, 42);
  on_every_policy<ms::nvfp4_exact>(exact, few, 43);
}

TEST_CASE("single-level schemes, and the uniform grid under a binary32 scale") {
  on_adversarial_blocks<ms::nvfp4_single>(single, many, 51);
  on_adversarial_blocks<ms::ue5m3_single>(under(single, model::ue5m3), many, 52);
  on_every_policy<ms::nvfp4_single>(single, few, 53);
  on_every_policy<ms::ue5m3_single>(under(single, model::ue5m3), few, 54);
  on_adversarial_blocks<ms::ufp4>(ufp4, many, 55);
  on_every_policy<ms::ufp4>(ufp4, few, 56);
}

TEST_CASE("exact and single-level schemes decide the ties that a reciprocal gets wrong") {
  // Scale 1.875: 2.34375, 4.6875 and 9.375 are exactly 1.25, 2.5 and 5 scales.
  const float x[16] = {11.25f, 2.34375f, 4.6875f, 9.375f, -2.34375f};
  const auto q = ms::quantize_block<ms::nvfp4_single>(x, 1.0f);
  CHECK(q.scale == 0x3F);
  CHECK((q.codes[1] == 2 && q.codes[2] == 4 && q.codes[3] == 6 && q.codes[4] == 0xA));
  // The same block under a tensor scale of 1: max * target.
  const auto e = ms::quantize_block<ms::nvfp4_exact>(x, 2688.0f);
  CHECK(e.scale == 0x3F);
  CHECK((e.codes[1] == 2 && e.codes[2] == 4 && e.codes[3] == 6 && e.codes[4] == 0xA));
  // TransformerEngine's order multiplies by the reciprocal, and this is what it gives.
  const auto t = ms::quantize_block<ms::nvfp4>(x, 2688.0f);
  CHECK(t.scale == 0x3F);
  CHECK(t.codes[1] == 3);
}

TEST_CASE("4over6 takes the scale that maps to four only where its error is smaller") {
  const auto scale_of = [](float x0, float x1, float x2) {
    const float x[16] = {x0, x1, x2};
    return ms::ue4m3::decode(ms::quantize_block<ms::nvfp4_4over6>(x, 1536.0f).scale);
  };
  CHECK(scale_of(6, 6, 6) == 1.0f);     // exact under 1
  CHECK(scale_of(6, 4.5f, 3) == 1.5f);  // 4, 3, 2 times 1.5: exact; under 1 the 4.5 is not
  CHECK(scale_of(6, 3, 1.5f) == 1.0f);  // exact under both: the first one stays
  CHECK(scale_of(6, 4.5f, 4) == 1.0f);  // an error of .5 under both: the first one stays
}
