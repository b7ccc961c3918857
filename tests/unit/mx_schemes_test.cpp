// Every MX scheme against the model: scales, codes and decoded values.
#include <microscale/block/schemes.hpp>

#include "support/held_to_model.hpp"

using held_to_model::on_adversarial_blocks;
using held_to_model::on_every_policy;
namespace ms = microscale;

namespace {

constexpr int many = 1400, few = 140;

model::scheme mx(const model::format& element, model::rule how = model::rule::mx_floor) {
  return {.how = how, .element = element, .scale = model::e8m0, .policy = model::nonfinite::poison};
}

}  // namespace

TEST_CASE("mxfp4 under its three scale rules") {
  on_adversarial_blocks<ms::mxfp4>(mx(model::e2m1), many, 1);
  on_adversarial_blocks<ms::mxfp4_even>(mx(model::e2m1, model::rule::mx_even), many, 2);
  on_adversarial_blocks<ms::mxfp4_ceil>(mx(model::e2m1, model::rule::mx_ceil), many, 3);
  on_adversarial_blocks<ms::mxfp4_ceil_2d>(mx(model::e2m1, model::rule::mx_ceil), few / 2, 4);
  on_every_policy<ms::mxfp4>(mx(model::e2m1), few, 5);
  on_every_policy<ms::mxfp4_ceil>(mx(model::e2m1, model::rule::mx_ceil), few, 6);
}

TEST_CASE("mxfp6 and mxfp8") {
  on_adversarial_blocks<ms::mxfp6_e2m3>(mx(model::e2m3), many, 11);
  on_adversarial_blocks<ms::mxfp6_e3m2>(mx(model::e3m2), many, 12);
  on_adversarial_blocks<ms::mxfp8_e4m3>(mx(model::e4m3), many, 13);
  on_adversarial_blocks<ms::mxfp8_e5m2>(mx(model::e5m2), many, 14);
  on_adversarial_blocks<ms::mxfp8_e4m3_ceil>(mx(model::e4m3, model::rule::mx_ceil), many, 15);
  on_adversarial_blocks<ms::mxfp8_e5m2_ceil>(mx(model::e5m2, model::rule::mx_ceil), many, 16);
  on_every_policy<ms::mxfp8_e4m3>(mx(model::e4m3), few, 17);
  on_every_policy<ms::mxfp8_e5m2>(mx(model::e5m2), few, 18);
}

TEST_CASE("mxint8") {
  on_adversarial_blocks<ms::mxint8>(mx(model::int8), many, 21);
  on_every_policy<ms::mxint8>(mx(model::int8), few, 22);
}

TEST_CASE("the scale rules on the amax where they part") {
  const auto scale = [](auto scheme, float amax) {
    const float x[32] = {0, -amax};
    return int{ms::quantize_block<decltype(scheme)>(x, 1.0f).scale};
  };
  struct line {
    float amax;
    int floor, even, ceil;
  };
  // E2M1: the top is 6, so ceil steps there; even steps at 1.75 binades; floor at the binade.
  const line lines[] = {
      {4.0f, 127, 127, 127},          {6.0f, 127, 127, 127},
      {0x1.800002p2f, 127, 127, 128}, {0x1.BFFFFEp2f, 127, 127, 128},
      {7.0f, 127, 128, 128},          {7.999f, 127, 128, 128},
      {8.0f, 128, 128, 128},          {2.2f, 126, 126, 126},
      {0x1p-149f, 0, 0, 0},           {0x1.8p-125f, 0, 0, 0},
      {0x1.800002p-125f, 0, 0, 1},    {0x1.Cp-125f, 0, 1, 1},
      {0x1p-124f, 1, 1, 1},           {ms::fp32::largest, 252, 253, 253},
  };
  for (const line& l : lines) {
    INFO("amax " << l.amax);
    CHECK(scale(ms::mxfp4{}, l.amax) == l.floor);
    CHECK(scale(ms::mxfp4_even{}, l.amax) == l.even);
    CHECK(scale(ms::mxfp4_ceil{}, l.amax) == l.ceil);
  }
  // 957 clips under floor and not under ceil; the top of E5M2 is 1.75 binades too.
  CHECK(scale(ms::mxfp8_e4m3{}, 957.0f) == 128);
  CHECK(scale(ms::mxfp8_e4m3_ceil{}, 957.0f) == 129);
  CHECK(scale(ms::mxfp8_e5m2{}, 127.99999f) == 118);
  CHECK(scale(ms::mxfp8_e5m2_ceil{}, 112.0f) == 118);
  CHECK(scale(ms::mxfp8_e5m2_ceil{}, 0x1.C00002p6f) == 119);
  CHECK(scale(ms::mxint8{}, 1.99f) == 127);
}
