// Blocks on which implementations part ways. Random data shows next to nothing: orders of operations that differ in a
// third of these blocks agree on millions of random ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "../block/quantize_block.hpp"
#include "../number/random.hpp"
#include "../tensor/environment.hpp"

namespace microscale::conformance {

enum class block_kind : std::uint8_t {
  on_ties,        // elements half-way between two codes times the scale, or a float or two beside
  on_scale_ties,  // an amax half-way between two scales, or a float or two beside; elements on ties as well
  wide_range,     // magnitudes over a hundred binades
  underflow,      // a scale about the smallest there is
  overflow,       // beyond what the largest scale covers
  near_zero,      // zeros of both signs and the smallest floats among others
  normal,         // roughly normal
  bfloat16,       // the same, cut to bfloat16
  subnormal,      // nothing but float subnormals
  equal,          // one magnitude
  zero,           // zeros of both signs
  nonfinite       // one NaN or infinity
};
inline constexpr int block_kinds = 12;

constexpr const char* name_of(block_kind kind) noexcept {
  constexpr const char* names[block_kinds] = {
      "elements on ties", "scales on ties", "wide range", "scale underflow",  "scale overflow", "zeros among others",
      "normal data",      "bfloat16 data",  "subnormals", "equal magnitudes", "zero blocks",    "NaN or infinity"};
  return names[static_cast<int>(kind)];
}

template <quantization_scheme S>
struct adversarial_block {
  block_kind kind = block_kind::normal;
  float x[S::block::elements] = {};
};

// Blocks that share a reference, as those of one tensor do.
template <quantization_scheme S>
struct adversarial_group {
  float reference = 1.0f;
  std::vector<adversarial_block<S>> blocks;
};

// Makes the same blocks from the same seed, everywhere.
template <quantization_scheme S>
class adversary {
 public:
  explicit adversary(std::uint64_t seed) : key_{seed, 0} {
    using element = typename S::element;
    microscale::detail::in_default_environment([&] {
      for (int code = 0; code < element::largest_code; ++code) {
        const float low = element::decode(static_cast<typename element::storage>(code));
        const float high = element::decode(static_cast<typename element::storage>(code + 1));
        ties_.push_back(fp32::mul(fp32::add(low, high), 0.5f));  // exact: neighbours share all but one bit
      }
    });
  }

  // `count` blocks of all kinds in turn, under a reference that fits the data or is up to 1000 times too small.
  adversarial_group<S> group(int count, bool nonfinite) {
    adversarial_group<S> g;
    microscale::detail::in_default_environment([&] { g = make_group(count, nonfinite); });
    return g;
  }

 private:
  static constexpr int size = S::block::elements;
  using scale = typename S::scale;

  adversarial_group<S> make_group(int count, bool nonfinite) {
    constexpr float references[] = {1.0f, 6.0f, 2688.0f, 2.3125f, 142857.14f, 3e-7f, 1e-30f, 1e30f};
    constexpr float too_small[] = {1.0f, 1.0f, 10.0f, 137.0f, 1000.0f};
    const float made_for = S::has_tensor_scale ? fp32::mul(references[below(8)], fp32::add(1.0f, uniform())) : 1.0f;
    t_ = S::factors(made_for);
    adversarial_group<S> g;
    g.reference = S::has_tensor_scale ? fp32::div(made_for, too_small[below(5)]) : 1.0f;
    for (int i = 0; i < count; ++i) {
      adversarial_block<S> b;
      b.kind = static_cast<block_kind>(i % (nonfinite ? block_kinds : block_kinds - 1));
      fill(b);
      g.blocks.push_back(b);
    }
    return g;
  }

  std::uint32_t draw() noexcept { return microscale::draw<32>(key_, position_++); }
  int below(int n) noexcept { return static_cast<int>(draw() % static_cast<std::uint32_t>(n)); }
  int between(int low, int high) noexcept { return low + below(high - low + 1); }
  float uniform() noexcept { return static_cast<float>(draw() >> 8) * 0x1p-24f; }  // exact
  float signed_at_random(float x) noexcept { return below(2) == 0 ? x : fp32::negate(x); }

  // The positive float `places` above or below x, within the finite ones.
  static float moved(float x, int places) noexcept {
    const std::int64_t m = static_cast<std::int64_t>(fp32::magnitude_bits(x)) + places;
    return fp32::from_bits(static_cast<std::uint32_t>(
        smaller(larger(m, std::int64_t{0}), static_cast<std::int64_t>(fp32::infinity_bits) - 1)));
  }
  static float power(int exponent) noexcept {
    return fp32::from_bits(static_cast<std::uint32_t>(exponent + 127) << 23);
  }

  // What an element of 1 under a block scale of s stands for.
  float unit(float s) const noexcept {
    const float u = S::rule::template decoded<S>(1.0f, s, t_);
    return fp32::is_finite(u) && !fp32::is_zero(u) ? u : 1.0f;
  }

  // An amax below the reference, by up to nine binades.
  float plausible_amax() noexcept {
    const float share = fp32::mul(fp32::add(1.0f, uniform()), power(-between(1, 9)));
    return S::has_tensor_scale ? fp32::mul(share, t_.reference) : share;
  }

  // One element of the amax, the others as `others` says where that is below.
  template <class Others>
  void fill_under(float amax, float (&x)[size], Others&& others) {
    for (float& e : x) {
      const float other = others();
      e = signed_at_random(fp32::less(amax, other) ? moved(amax, -below(1 << 22)) : other);
    }
    x[below(size)] = signed_at_random(amax);
  }

  void fill_tied(float amax, float (&x)[size]) {
    running_amax seen;
    seen.see(amax);
    const float quantum = unit(scale::decode(block_scale<S>(seen, t_)));
    const int count = static_cast<int>(ties_.size());
    fill_under(amax, x, [&] {
      return moved(fp32::mul(ties_[static_cast<std::size_t>(below(count))], quantum), between(-2, 2));
    });
  }

  void fill_normal(float amax, float (&x)[size]) {
    fill_under(amax, x, [&] {
      float sum = 0.0f;
      for (int i = 0; i < 12; ++i) sum = fp32::add(sum, uniform());
      return fp32::mul(fp32::abs(fp32::sub(sum, 6.0f)), fp32::mul(amax, 0.25f));
    });
  }

  // An amax whose ideal scale is a tie.
  float amax_on_scale_tie() noexcept {
    const float top = S::element::largest();
    if constexpr (scale::bits > 16) {
      return plausible_amax();  // a scale that is as fine as the data has no ties worth testing
    } else if constexpr (!scale::has_zero) {
      // Rules of powers of two decide somewhere in a binade: at its ends, at the largest element's place, or where
      // rounding to a few bits carries into the next.
      const float significand = fp32::from_bits((fp32::bits(top) & 0x007FFFFFu) | 0x3F800000u);
      const float places[] = {1.0f, 2.0f, significand, 1.5f, 1.75f, 1.875f, 1.9375f};
      return fp32::mul(places[below(7)], power(between(-20, 20)));
    } else {
      const int code = between(1, scale::largest_code - 1);
      const float low = scale::decode(static_cast<typename scale::storage>(code));
      const float high = scale::decode(static_cast<typename scale::storage>(code + 1));
      return fp32::mul(fp32::mul(fp32::mul(fp32::add(low, high), 0.5f), top), unit(1.0f));
    }
  }

  // The amax of a block whose ideal scale is `times` the smallest or the largest one.
  float amax_at(float s, float times) const noexcept {
    const float amax = fp32::mul(fp32::mul(fp32::mul(s, S::element::largest()), times), unit(1.0f));
    return fp32::is_finite(amax) ? amax : fp32::largest;
  }
  static constexpr bool scales_span_floats = scale::bits > 16 || !scale::has_zero;

  void fill(adversarial_block<S>& b) {
    switch (b.kind) {
      case block_kind::on_ties:
        return fill_tied(plausible_amax(), b.x);
      case block_kind::on_scale_ties:
        return fill_tied(moved(amax_on_scale_tie(), between(-2, 2)), b.x);
      case block_kind::wide_range: {
        const std::uint32_t low = static_cast<std::uint32_t>(between(1, 150));
        for (float& e : b.x) {
          e = signed_at_random(fp32::from_bits((low + draw() % 101u) << 23 | (draw() & 0x007FFFFFu)));
        }
        return;
      }
      case block_kind::underflow: {
        constexpr float times[] = {0.015625f, 0.25f, 0.5f, 0.75f, 1.0f, 1.5f};
        const float smallest = scales_span_floats ? 0x1p-126f : scale::smallest_positive();
        const float amax = moved(amax_at(smallest, times[below(6)]), between(-1, 1));
        return fill_normal(fp32::is_zero(amax) ? fp32::from_bits(1) : amax, b.x);
      }
      case block_kind::overflow: {
        constexpr float times[] = {1.0f, 2.0f, 7.0f, 30.0f, 137.0f, 1000.0f};
        return fill_tied(amax_at(scales_span_floats ? 0x1p125f : scale::largest(), times[below(6)]), b.x);
      }
      case block_kind::near_zero: {
        constexpr std::uint32_t tiny[] = {0u, 0x80000000u, 1u, 0x80000001u, 0x00400000u, 0x807FFFFFu};
        fill_normal(plausible_amax(), b.x);
        for (int i = 0; i < size; i += 2) b.x[i] = fp32::from_bits(tiny[below(6)]);
        return;
      }
      case block_kind::normal:
        return fill_normal(plausible_amax(), b.x);
      case block_kind::bfloat16:
        fill_normal(plausible_amax(), b.x);
        for (float& e : b.x) e = fp32::from_bits(fp32::bits(e) & 0xFFFF0000u);
        return;
      case block_kind::subnormal:
        for (float& e : b.x) e = signed_at_random(fp32::from_bits(draw() & ((1u << between(1, 23)) - 1u)));
        return;
      case block_kind::equal: {
        const float amax = plausible_amax();
        for (float& e : b.x) e = signed_at_random(amax);
        return;
      }
      case block_kind::zero:
        for (float& e : b.x) e = signed_at_random(0.0f);
        return;
      case block_kind::nonfinite:
        fill_normal(plausible_amax(), b.x);
        b.x[below(size)] = below(2) == 0 ? fp32::quiet_nan() : signed_at_random(fp32::from_bits(fp32::infinity_bits));
        return;
    }
  }

  random_key key_;
  std::uint64_t position_ = 0;
  std::vector<float> ties_;
  tensor_factors t_;
};

}  // namespace microscale::conformance
