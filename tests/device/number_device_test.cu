// The number layer on the GPU: every code of every format decodes to the same bits as on the host, and every rounding
// of adversarial numbers gives the same code, from float, double and integers.
#include <cmath>

#include <microscale/number/formats.hpp>
#include <microscale/number/random.hpp>

#include "device_test.cuh"

namespace ms = microscale;
using namespace device_test;

namespace {

template <class... F>
struct list {};

using formats =
    list<ms::e2m1, ms::e1m2, ms::e2m3, ms::e3m2, ms::e4m3, ms::e5m2, ms::int8, ms::int4, ms::int8_full, ms::int4_full,
         ms::ue4m3, ms::ue5m3, ms::ue5m3_ieee, ms::e8m0, ms::e8m0_tie_even, ms::bf16, ms::f16, ms::f32>;
constexpr const char* names[] = {"e2m1",       "e1m2", "e2m3",          "e3m2",      "e4m3",  "e5m2",
                                 "int8",       "int4", "int8_full",     "int4_full", "ue4m3", "ue5m3",
                                 "ue5m3_ieee", "e8m0", "e8m0_tie_even", "bf16",      "f16",   "f32"};

// What both sides compute for one number: its code under each rounding and overflow policy, mixed into one word so
// that the comparison is one pass. A mismatch is taken apart again on the host.
constexpr int variants = 18;
template <class F, class T>
MICROSCALE_HD std::uint32_t encode_variant(T x, int variant, std::uint32_t random) {
  const auto policy = variant % 2 == 0 ? ms::overflow::saturate : ms::overflow::ieee;
  switch (variant / 2) {
    case 0:
      return F::encode(x, ms::nearest_even{}, policy);
    case 1:
      return F::encode(x, ms::toward_zero{}, policy);
    case 2:
      return F::encode(x, ms::toward_positive{}, policy);
    case 3:
      return F::encode(x, ms::toward_negative{}, policy);
    case 4:
      return F::encode(x, ms::stochastic_midpoint8{}, policy, random & 0xFF);
    case 5:
      return F::encode(x, ms::stochastic_midpoint16{}, policy, random & 0xFFFF);
    case 6:
      return F::encode(x, ms::stochastic_midpoint32{}, policy, random);
    case 7:
      return F::encode(x, ms::stochastic_floor8{}, policy, random & 0xFF);
    default:
      return F::encode(x, ms::stochastic_floor<32>{}, policy, random);
  }
}
MICROSCALE_HD std::uint32_t random_of(std::uint64_t i) {
  return static_cast<std::uint32_t>((i + 1) * 0x9E3779B97F4A7C15u >> 32);
}
template <class F, class T>
MICROSCALE_HD std::uint64_t all_codes(T x, std::uint64_t i) {
  std::uint64_t mix = 0;
  for (int v = 0; v < variants; ++v) mix = mix * 0x100000001B3u + encode_variant<F>(x, v, random_of(i));
  return mix;
}

template <class F, class T>
__global__ void encode_kernel(const T* x, std::int64_t n, std::uint64_t* out) {
  for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < n;
       i += std::int64_t{gridDim.x} * blockDim.x) {
    out[i] = all_codes<F>(x[i], static_cast<std::uint64_t>(i));
  }
}
template <class F>
__global__ void decode_kernel(std::uint32_t first, std::int64_t n, float* out) {
  const std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x;
  if (i < n)
    out[i] = F::decode(
        static_cast<typename F::storage>(first + static_cast<std::uint32_t>(i) * (F::bits > 16 ? 4093u : 1u)));
}
template <class T>
__global__ void draw_kernel(ms::random_key key, T* out, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) {
    const auto position = static_cast<std::uint64_t>(i) * 0x12345678ABu + static_cast<std::uint64_t>(i);
    out[i] = ms::draw<8>(key, position) ^ ms::draw<16>(key, position) << 8 ^ ms::draw<32>(key, position);
  }
}
template <class T>
__global__ void arithmetic_kernel(const T* x, int n, T* out) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) {
    const float a = x[i], b = x[(i * 7 + 3) % n];
    out[5 * i] = ms::fp32::mul(a, b);
    out[5 * i + 1] = ms::fp32::div(a, b);
    out[5 * i + 2] = ms::fp32::add(a, b);
    out[5 * i + 3] = ms::fp32::sub(a, b);
    out[5 * i + 4] = ms::fp32::sqrt(ms::fp32::abs(a));
  }
}

unsigned grid(std::int64_t n) { return static_cast<unsigned>((n + 255) / 256); }

// Numbers at which a format can go wrong: its values, the midpoints between them and three steps of a float to either
// side; every bfloat16; random bit patterns.
template <class F>
std::vector<float> interesting_numbers(std::uint64_t seed) {
  std::vector<float> x;
  const auto around = [&](float v) {
    if (!ms::fp32::is_finite(v)) return;
    const std::uint32_t b = float_bits(ms::fp32::abs(v));
    for (int d = -3; d <= 3; ++d) {
      const std::uint32_t near = b + static_cast<std::uint32_t>(d);
      if (near > 0x7F800000u) continue;
      x.push_back(bits_float(near));
      x.push_back(bits_float(near | 0x80000000u));
    }
  };
  if constexpr (F::bits <= 16) {
    const std::uint32_t count = 1u << F::bits;
    for (std::uint32_t c = 0; c < count; ++c) {
      const float v = F::decode(static_cast<typename F::storage>(c));
      const float next = F::decode(static_cast<typename F::storage>((c + 1) % count));
      around(v);
      if (ms::fp32::is_finite(v) && ms::fp32::is_finite(next)) {
        around(static_cast<float>((static_cast<double>(v) + static_cast<double>(next)) / 2));
      }
      if (ms::fp32::is_finite(v)) around(static_cast<float>(static_cast<double>(v) * 1.5));
    }
  }
  for (std::uint32_t b = 0; b < 0x10000; ++b) x.push_back(bits_float(b << 16));
  random_source random(seed);
  for (int i = 0; i < 1 << 19; ++i) x.push_back(bits_float(random.bits()));
  for (int i = 0; i < 1 << 19; ++i) {  // near the format's range
    const double unit = static_cast<double>(F::largest()) * (1 + random.uniform());
    x.push_back(static_cast<float>(unit * std::pow(2.0, -30 * random.uniform()) * (random.below(2) ? 1 : -1)));
  }
  return x;
}

template <class F, class T>
void test_encode(results& r, const char* name, const char* source, const std::vector<T>& x) {
  device_array<T> in(x);
  device_array<std::uint64_t> out(x.size());
  const auto n = static_cast<std::int64_t>(x.size());
  encode_kernel<F><<<grid(n), 256>>>(in.data(), n, out.data());
  synchronize("encode");
  const auto got = out.host();
  std::atomic<std::int64_t> bad{-1};
  parallel_for(
      n,
      [&](std::int64_t i) {
        const auto u = static_cast<std::uint64_t>(i);
        if (got[u] != all_codes<F>(x[u], u)) bad = i;
      },
      4096);
  std::string where;
  if (bad >= 0) where = " at input " + std::to_string(static_cast<double>(x[static_cast<std::size_t>(bad)]));
  r.expect(bad < 0, std::string("encode ") + name + " from " + source + where);
  r.add_elements(static_cast<std::uint64_t>(n) * variants);
}

template <class F>
void test_format(results& r, const char* name) {
  const std::int64_t count = F::bits > 16 ? 1 << 20 : std::int64_t{1} << F::bits;
  device_array<float> decoded(static_cast<std::size_t>(count));
  decode_kernel<F><<<grid(count), 256>>>(0, count, decoded.data());
  synchronize("decode");
  const auto values = decoded.host();
  std::int64_t bad = -1;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto code = static_cast<typename F::storage>(static_cast<std::uint32_t>(i) * (F::bits > 16 ? 4093u : 1u));
    if (float_bits(values[static_cast<std::size_t>(i)]) != float_bits(F::decode(code))) bad = i;
  }
  r.expect(bad < 0, std::string("decode ") + name + " of code " + std::to_string(bad));
  r.add_elements(static_cast<std::uint64_t>(count));

  const auto x = interesting_numbers<F>(F::bits);
  test_encode<F>(r, name, "float", x);
  r.end_group(name);
}

// Doubles and integers take the same path after they are taken apart, so a few formats stand for all.
template <class F>
void test_other_sources(results& r, const char* name) {
  random_source random(99);
  std::vector<double> d;
  std::vector<std::int64_t> n;
  for (int i = 0; i < 1 << 18; ++i) {
    const double v = static_cast<double>(F::decode(static_cast<typename F::storage>(random.bits())));
    const double nudge = 1 + (random.below(5) - 2) * 0x1p-52;
    d.push_back(random.below(4) == 0 ? static_cast<double>(bits_float(random.bits())) * nudge : v * 1.25 * nudge);
    n.push_back(static_cast<std::int64_t>(random.bits64()) >> random.below(64));
  }
  test_encode<F>(r, name, "double", d);
  test_encode<F>(r, name, "int64", n);
}

template <class... F>
void test_formats(results& r, list<F...>) {
  int i = 0;
  (test_format<F>(r, names[i++]), ...);
}

void test_random_bits(results& r) {
  constexpr int n = 1 << 20;
  device_array<std::uint32_t> out(n);
  const ms::random_key key{0x0123456789ABCDEFu, 0xFEDCBA9876543210u};
  draw_kernel<<<grid(n), 256>>>(key, out.data(), n);
  synchronize("draw");
  const auto got = out.host();
  std::atomic<int> bad{0};
  parallel_for(
      n,
      [&](std::int64_t i) {
        const auto position = static_cast<std::uint64_t>(i) * 0x12345678ABu + static_cast<std::uint64_t>(i);
        const std::uint32_t expected =
            ms::draw<8>(key, position) ^ ms::draw<16>(key, position) << 8 ^ ms::draw<32>(key, position);
        if (got[static_cast<std::size_t>(i)] != expected) ++bad;
      },
      4096);
  r.expect(bad == 0, "draws");
  r.add_elements(n);
  r.end_group("Philox draws");
}

void test_arithmetic(results& r) {
  random_source random(5);
  std::vector<float> x;
  for (int i = 0; i < 1 << 20; ++i) {
    // Whole range, with a good share of subnormals, zeros and numbers whose products are subnormal.
    const std::uint32_t b = random.bits();
    x.push_back(bits_float(i % 4 == 0 ? b & 0x807FFFFFu : i % 97 == 0 ? b & 0x80000000u : b));
  }
  const int n = static_cast<int>(x.size());
  device_array<float> in(x), out(x.size() * 5);
  arithmetic_kernel<<<grid(n), 256>>>(in.data(), n, out.data());
  synchronize("arithmetic");
  const auto got = out.host();
  std::atomic<int> bad{0};
  parallel_for(
      n,
      [&](std::int64_t i) {
        const float a = x[static_cast<std::size_t>(i)],
                    b = x[static_cast<std::size_t>((static_cast<int>(i) * 7 + 3) % n)];
        const float expected[5] = {ms::fp32::mul(a, b), ms::fp32::div(a, b), ms::fp32::add(a, b), ms::fp32::sub(a, b),
                                   ms::fp32::sqrt(ms::fp32::abs(a))};
        for (int k = 0; k < 5; ++k) {
          if (!same_float(got[static_cast<std::size_t>(5 * i + k)], expected[k])) ++bad;
        }
      },
      4096);
  r.expect(bad == 0, "fp32 arithmetic: " + std::to_string(bad.load()) + " differ");
  r.add_elements(static_cast<std::uint64_t>(n) * 5);
  r.end_group("fp32 arithmetic");
}

}  // namespace

int main() {
  need_gpu();
  results r;
  test_arithmetic(r);
  test_random_bits(r);
  test_formats(r, formats{});
  test_other_sources<ms::e2m1>(r, "e2m1");
  test_other_sources<ms::ue5m3>(r, "ue5m3");
  test_other_sources<ms::e8m0>(r, "e8m0");
  test_other_sources<ms::bf16>(r, "bf16");
  r.end_group("doubles and integers");
  return r.finish();
}
