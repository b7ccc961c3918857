// Random streams of a training run: a field for everything that must draw apart.
#include <microscale/recipe/stream.hpp>

#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <set>
#include <vector>

namespace ms = microscale;

namespace {

constexpr ms::operand_role operands[] = {ms::operand_role::activation, ms::operand_role::weight,
                                         ms::operand_role::output_gradient};
constexpr ms::gemm_role gemms[] = {ms::gemm_role::fprop, ms::gemm_role::dgrad, ms::gemm_role::wgrad};
constexpr ms::draw_purpose purposes[] = {ms::draw_purpose::elements, ms::draw_purpose::scales, ms::draw_purpose::signs};

}  // namespace

TEST_CASE("no two draws of a run share a stream") {
  std::set<std::uint64_t> streams;
  std::size_t combinations = 0;
  for (const std::int64_t step : {1, 2, 3, 4096, 65536, 1 << 30}) {
    for (const int micro_batch : {0, 1, 2, 512, 1023}) {
      for (const std::uint32_t layer : {0u, 1u, 2u, 1024u, 65535u}) {
        for (const auto operand : operands) {
          for (const auto gemm : gemms) {
            for (const auto purpose : purposes) {
              streams.insert(
                  ms::random_stream({.step = step, .micro_batch = micro_batch}, layer, operand, gemm, purpose));
              ++combinations;
            }
          }
        }
      }
    }
  }
  CHECK(streams.size() == combinations);
}

TEST_CASE("each field in its bits: purpose 2, GEMM 2, operand 2, micro-batch 10, layer 16, step 32") {
  using o = ms::operand_role;
  using g = ms::gemm_role;
  using p = ms::draw_purpose;
  static_assert(ms::random_stream({.step = 0}, 0, o::activation, g::fprop) == 0);
  static_assert(ms::random_stream({.step = 0}, 0, o::activation, g::fprop, p::signs) == 2);
  static_assert(ms::random_stream({.step = 0}, 0, o::activation, g::wgrad) == 2u << 2);
  static_assert(ms::random_stream({.step = 0}, 0, o::output_gradient, g::fprop) == 2u << 4);
  static_assert(ms::random_stream({.step = 0, .micro_batch = 1023}, 0, o::activation, g::fprop) == 1023u << 6);
  static_assert(ms::random_stream({.step = 0}, 65535, o::activation, g::fprop) == std::uint64_t{65535} << 16);
  static_assert(ms::random_stream({.step = 0xFFFFFFFF}, 0, o::activation, g::fprop) == std::uint64_t{0xFFFFFFFF} << 32);
  // Beyond a field's range numbers wrap; they never spill into the neighbour.
  static_assert(ms::random_stream({.step = 0, .micro_batch = 1024}, 0, o::activation, g::fprop) == 0);
  static_assert(ms::random_stream({.step = 0}, 65536, o::activation, g::fprop) == 0);
  static_assert(ms::random_stream({.step = std::int64_t{1} << 32}, 0, o::activation, g::fprop) == 0);
  // The seed is the key, not part of the stream.
  static_assert(ms::random_stream({.step = 5, .seed = 1}, 3, o::weight, g::dgrad) ==
                ms::random_stream({.step = 5, .seed = 2}, 3, o::weight, g::dgrad));
  SUCCEED();
}

TEST_CASE("a stream is that of a step 0 plus what the step adds") {
  for (const std::int64_t step :
       {std::int64_t{0}, std::int64_t{1}, std::int64_t{50}, std::int64_t{0xFFFFFFFF}, (std::int64_t{1} << 32) + 7}) {
    for (const int micro_batch : {0, 1, 1023, 1025}) {
      const ms::training_step at{.step = step, .micro_batch = micro_batch, .seed = 3};
      for (const std::uint32_t layer : {0u, 1u, 65535u, 65537u}) {
        for (const auto operand : operands) {
          for (const auto gemm : gemms) {
            for (const auto purpose : purposes) {
              const ms::training_step none{.step = 0};
              CHECK(ms::random_stream(at, layer, operand, gemm, purpose) ==
                    ms::random_stream(none, layer, operand, gemm, purpose) + ms::stream_offset(at));
            }
          }
        }
      }
    }
  }
}
