// Matrices of 2^31 + 48 elements on the GPU: right at both ends, so that no index is cut to 32 bits. Needs 40 GB of
// device memory; says `no GPU here` where there is less.
#include <algorithm>

#include <microscale/microscale.cuh>

#include "device_test.cuh"

namespace {

namespace ms = microscale;
using namespace device_test;
using ms::index_t;
using bf16 = ms::value<ms::bf16>;

constexpr index_t count = (index_t{1} << 31) + 48;

// Element i of every input: any sign, sixteen binades, and at the very last place the largest of all.
MICROSCALE_HD float element(index_t i) {
  if (i == count - 1) return -1000.0f;
  std::uint64_t z = static_cast<std::uint64_t>(i) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 32)) * 0xD6E8FEB86659FD93u;
  const std::uint32_t b = static_cast<std::uint32_t>(z >> 32);
  return ms::fp32::from_bits((b & 0x807F0000u) | ((120u + (b >> 24 & 15u)) << 23));
}

template <class T>
__global__ void fill_kernel(T* out) {
  for (index_t i = blockIdx.x * index_t{blockDim.x} + threadIdx.x; i < count; i += index_t{gridDim.x} * blockDim.x) {
    out[i] = T(element(i));
  }
}

template <class T>
struct buffer {
  T* data = nullptr;
  explicit buffer(index_t n) {
    check(cudaMalloc(&data, static_cast<std::size_t>(n) * sizeof(T)), "cudaMalloc");
    check(cudaMemset(data, 0xA5, static_cast<std::size_t>(n) * sizeof(T)), "cudaMemset");
  }
  ~buffer() { cudaFree(data); }
  buffer(const buffer&) = delete;
  buffer& operator=(const buffer&) = delete;
  std::vector<T> read(index_t first, index_t n) const {
    std::vector<T> v(static_cast<std::size_t>(n));
    check(cudaMemcpy(v.data(), data + first, static_cast<std::size_t>(n) * sizeof(T), cudaMemcpyDeviceToHost), "copy");
    return v;
  }
};

using S = ms::nvfp4;
constexpr index_t window = 1 << 16;  // blocks that are looked at, at each end

// Blocks [first, last) of stored row `row`, against what the block functions make of the same elements.
template <class R>
void compare_blocks(results& r, const ms::quantized_view<S>& q, ms::axis along, R rounding, const ms::tensor_factors& t,
                    index_t row, index_t first, index_t last, const std::string& what) {
  const index_t bytes = ms::packed_bytes(4, std::min(q.cols, last * 16) - first * 16);
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(bytes)), scales(static_cast<std::size_t>(last - first));
  check(cudaMemcpy(codes.data(), q.codes + row * q.code_pitch + first * 8, codes.size(), cudaMemcpyDeviceToHost),
        "copy");
  check(cudaMemcpy(scales.data(), q.scales + row * q.scale_pitch + first, scales.size(), cudaMemcpyDeviceToHost),
        "copy");
  std::atomic<index_t> bad{-1};
  parallel_for(
      last - first,
      [&](index_t i) {
        const index_t k = (first + i) * 16;
        const ms::block_extent extent{1, static_cast<int>(std::min(index_t{16}, q.cols - k))};
        float x[16] = {};
        for (int j = 0; j < extent.columns; ++j)
          x[j] = element(along == ms::axis::row ? row * q.cols + k + j : (k + j) * q.rows + row);
        const auto b = ms::detail::quantize_block_at<S>(x, t, rounding, row, k, q.cols, extent);
        std::uint8_t expected[8] = {};
        ms::store_codes<ms::e2m1>(expected, b.codes, extent.columns);
        const auto at = static_cast<std::size_t>(i * 8);
        if (b.scale != scales[static_cast<std::size_t>(i)] ||
            std::memcmp(expected, codes.data() + at, static_cast<std::size_t>(ms::packed_bytes(4, extent.columns))) !=
                0) {
          bad = first + i;
        }
      },
      256);
  r.expect(bad < 0, what + " row " + std::to_string(row) + ", block " + std::to_string(bad.load()));
  r.add_elements(static_cast<std::uint64_t>(last - first) * 16);
}

template <class T, class R>
void test_quantize(results& r, const buffer<T>& in, index_t rows, index_t cols, ms::axis along, R rounding,
                   const std::string& what) {
  const bool by_row = along == ms::axis::row;
  const index_t stored_rows = by_row ? rows : cols, stored_cols = by_row ? cols : rows;
  const auto size = ms::size_of<S>(stored_rows, stored_cols);
  const buffer<std::uint8_t> codes(size.code_bytes), scales(size.scales);
  const buffer<float> datum(1);
  const buffer<std::byte> workspace(4);
  const ms::quantized_view<S> q{codes.data,  scales.data,     datum.data,      stored_rows,
                                stored_cols, size.code_pitch, size.scale_pitch};
  ms::quantize_with(ms::cuda{}, ms::matrix(static_cast<const T*>(in.data), rows, cols), q, rounding, {.axis = along},
                    std::span<std::byte>(workspace.data, 4));
  synchronize(what.c_str());
  r.expect(datum.read(0, 1)[0] == 1000.0f, what + ": the amax is the last element");
  const ms::tensor_factors t = S::factors(1000.0f);
  const index_t blocks = q.block_cols(), shown = std::min(blocks, window);
  if (stored_rows <= 16) {
    for (const index_t row : {index_t{0}, stored_rows - 1}) {
      compare_blocks(r, q, along, rounding, t, row, 0, shown, what);
      compare_blocks(r, q, along, rounding, t, row, blocks - shown, blocks, what);
    }
  } else {
    for (index_t row = 0; row < 512; ++row) {
      compare_blocks(r, q, along, rounding, t, row, 0, shown, what);
      compare_blocks(r, q, along, rounding, t, stored_rows - 1 - row, 0, shown, what);
    }
  }
}

void test_decode(results& r, const buffer<bf16>& in) {
  const auto size = ms::size_of<S>(1, count);
  const buffer<std::uint8_t> codes(size.code_bytes), scales(size.scales);
  const buffer<float> datum(1);
  const buffer<std::byte> workspace(4);
  const buffer<bf16> out(count), fake(count);
  const ms::quantized_view<S> q{codes.data, scales.data, datum.data, 1, count, size.code_pitch, size.scale_pitch};
  const auto view = ms::matrix(static_cast<const bf16*>(in.data), 1, count);
  const std::span<std::byte> space(workspace.data, 4);
  ms::quantize_with(ms::cuda{}, view, q, ms::nearest_even{}, {}, space);
  ms::dequantize_into(ms::cuda{}, q, ms::matrix(out.data, 1, count));
  ms::fake_quantize_into<S>(ms::cuda{}, view, ms::matrix(fake.data, 1, count), {}, space);
  synchronize("decode");
  const ms::tensor_factors t = S::factors(1000.0f);
  for (const index_t first : {index_t{0}, count / 16 - window}) {
    const auto decoded = out.read(first * 16, window * 16), faked = fake.read(first * 16, window * 16);
    std::atomic<index_t> bad{-1};
    parallel_for(
        window,
        [&](index_t i) {
          float x[16];
          for (int j = 0; j < 16; ++j) x[j] = element((first + i) * 16 + j);
          const auto b = ms::quantize_block<S>(x, t);
          ms::dequantize_block<S>(b, t, x);
          for (int j = 0; j < 16; ++j) {
            const auto at = static_cast<std::size_t>(i * 16 + j);
            const std::uint16_t expected = ms::from_float<bf16>(x[j]).code();
            if (decoded[at].code() != expected || faked[at].code() != expected) bad = first + i;
          }
        },
        256);
    r.expect(bad < 0, "decoded block " + std::to_string(bad.load()));
    r.add_elements(static_cast<std::uint64_t>(window) * 32);
  }
  r.end_group("dequantize, fake-quantize");

  ms::hadamard_into(ms::cuda{}, view, ms::matrix(out.data, 1, count));
  synchronize("hadamard");
  for (const index_t first : {index_t{0}, count / 16 - window}) {
    const auto got = out.read(first * 16, window * 16);
    index_t bad = -1;
    for (index_t i = 0; i < window; ++i) {
      float x[16];
      for (int j = 0; j < 16; ++j) x[j] = element((first + i) * 16 + j);
      ms::hadamard_run(x);
      for (int j = 0; j < 16; ++j) {
        if (got[static_cast<std::size_t>(i * 16 + j)].code() != ms::from_float<bf16>(x[j]).code()) bad = first + i;
      }
    }
    r.expect(bad < 0, "transformed run " + std::to_string(bad));
    r.add_elements(static_cast<std::uint64_t>(window) * 16);
  }
  r.end_group("hadamard");
}

void test_product(results& r) {
  constexpr index_t m = 46342, k = 16;  // m m > 2^31
  random_source random(8);
  ms::quantized<S> a(m, k);
  const auto view = a.view();
  for (index_t i = 0; i < m * 8; ++i) view.codes[i] = static_cast<std::uint8_t>(random.bits());
  for (index_t i = 0; i < m; ++i) view.scales[i] = static_cast<std::uint8_t>(0x30 + random.below(16));
  *view.datum = 5.0f;
  const device_array<std::uint8_t> codes(a.codes()), scales(a.scales());
  const device_array<float> datum(std::vector<float>{5.0f});
  const buffer<float> c(m * m);
  const ms::quantized_view<S> q{codes.data(), scales.data(), datum.data(), m, k, 8, 1};
  ms::gemm_into<ms::blackwell_k64>(ms::cuda{}, q, q, ms::matrix(c.data, m, m));
  synchronize("gemm");
  const float alpha = ms::fp32::mul(a.decode_multiplier(), a.decode_multiplier());
  for (const index_t row : {index_t{0}, m / 2, m - 1}) {
    const auto got = c.read(row * m, m);
    index_t bad = -1;
    for (index_t j = 0; j < m; ++j) {
      const float expected = ms::fp32::mul(ms::blackwell_k64::dot<S, S>(a.view(), row, a.view(), j), alpha);
      if (float_bits(got[static_cast<std::size_t>(j)]) != float_bits(expected)) bad = j;
    }
    r.expect(bad < 0, "product row " + std::to_string(row) + ", column " + std::to_string(bad));
    r.add_elements(static_cast<std::uint64_t>(m));
  }
  r.end_group("gemm with 2^31 outputs");
}

}  // namespace

int main() {
  need_gpu();
  std::size_t free_bytes = 0, total_bytes = 0;
  check(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
  if (free_bytes < std::size_t{40} << 30) {
    std::printf("no GPU here with 40 GB of free memory\n");
    return 0;
  }
  results r;
  constexpr index_t tall = count / 16;
  const ms::stochastic_midpoint8 draws{77, 3};
  {
    const buffer<bf16> in(count);
    fill_kernel<<<8192, 256>>>(in.data);
    synchronize("fill");
    test_quantize(r, in, 1, count, ms::axis::row, draws, "one row, bf16, stochastic");
    test_quantize(r, in, tall, 16, ms::axis::row, ms::nearest_even{}, "16 columns, bf16");
    test_quantize(r, in, tall, 16, ms::axis::col, draws, "16 columns, bf16, down the columns, stochastic");
    test_quantize(r, in, count, 1, ms::axis::col, draws, "one column, bf16, stochastic");
    r.end_group("quantize bf16");
    test_decode(r, in);
  }
  {
    const buffer<float> in(count);
    fill_kernel<<<8192, 256>>>(in.data);
    synchronize("fill");
    test_quantize(r, in, 1, count, ms::axis::row, ms::nearest_even{}, "one row, float");
    test_quantize(r, in, 16, tall, ms::axis::col, ms::nearest_even{}, "16 rows, float, down the columns");
    r.end_group("quantize float");
  }
  test_product(r);
  return r.finish();
}
