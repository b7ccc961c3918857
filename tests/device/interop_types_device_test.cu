// CUDA's narrow types as this library's codes: every code means the same number to both, each way, by CUDA's host
// paths. The casts change no bit, so what holds here holds in a kernel, where they are compiled too. Needs no GPU.
#include <microscale/interop/cuda_types.cuh>

#include <cmath>
#include <string>

#include "device_test.cuh"

namespace ms = microscale;
using namespace ms::interop;

namespace {

bool same(float a, float b) { return (std::isnan(a) && std::isnan(b)) || ms::fp32::bits(a) == ms::fp32::bits(b); }

template <class Format>
void check_format(device_test::results& r, const char* name) {
  for (unsigned code = 0; code < 1u << Format::bits; ++code) {
    const auto c = static_cast<typename Format::storage>(code);
    const auto theirs = to_cuda<Format>(c);
    const std::string what = std::string(name) + " code " + std::to_string(code);
    r.expect(from_cuda<Format>(theirs) == c, what + ": there and back");
    r.expect(same(static_cast<float>(theirs), Format::decode(c)), what + ": the same number");
    if (!Format::is_finite(c)) continue;
    using type = typename cuda_type<Format>::type;
    r.expect(from_cuda<Format>(type(Format::decode(c))) == c, what + ": encoded by CUDA");
  }
  r.add_elements(1u << Format::bits);
}

// That the casts compile for a device.
__global__ void turn(std::uint8_t* codes) {
  codes[0] = from_cuda_pair(to_cuda_pair(from_cuda<ms::e4m3>(to_cuda<ms::e4m3>(codes[0]))));
}

}  // namespace

int main() {
  device_test::results r;
  static_cast<void>(&turn);
  check_format<ms::e2m1>(r, "e2m1");
  check_format<ms::e2m3>(r, "e2m3");
  check_format<ms::e3m2>(r, "e3m2");
  check_format<ms::e4m3>(r, "e4m3");
  check_format<ms::e5m2>(r, "e5m2");
  check_format<ms::e8m0>(r, "e8m0");
  check_format<ms::ue4m3>(r, "ue4m3");
  r.end_group("codes");

  for (unsigned byte = 0; byte < 256; ++byte) {
    const auto packed = static_cast<std::uint8_t>(byte);
    const auto pair = to_cuda_pair(packed);
    r.expect(from_cuda_pair(pair) == packed, "pair there and back");
    const float2 x = static_cast<float2>(pair);
    r.expect(same(x.x, ms::e2m1::decode(ms::load_code<ms::e2m1>(&packed, 0))), "first of a pair");
    r.expect(same(x.y, ms::e2m1::decode(ms::load_code<ms::e2m1>(&packed, 1))), "second of a pair");
  }
  r.add_elements(256);
  r.end_group("pairs");

  __nv_bfloat16 wide[6];
  __half halves[6];
  for (int i = 0; i < 6; ++i)
    wide[i] = __float2bfloat16(1.5f * static_cast<float>(i)), halves[i] = __float2half(0.25f * static_cast<float>(i));
  const auto b = matrix_of_cuda(wide, 2, 2, 3);
  const auto h = matrix_of_cuda(static_cast<const __half*>(halves), 2, 3, 3);
  r.expect(static_cast<float>(b(1, 1)) == 6.0f && b.pitch == 3, "__nv_bfloat16");
  r.expect(static_cast<float>(h(1, 2)) == 1.25f, "__half");
  r.end_group("views");
  return r.finish();
}
