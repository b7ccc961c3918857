// Quantization on a GPU against what its memory allows: every operation interleaved with a kernel that only moves the
// same bytes in the same pattern, and with a copy. Builds where no GPU is; runs on one in a single call:
//
//   quantize_cuda_bench [rounds [file.csv]]
#include <microscale/cuda/hadamard_quantize.cuh>
#include <microscale/cuda/quantize.cuh>

#include <memory>

#include "cuda_timing.cuh"

namespace {

namespace ms = microscale;
using namespace cuda_timing;
using ms::index_t;
using bf16 = ms::value<ms::bf16>;

// Sums of four uniform numbers, in rows of seven different sizes: neither zeros nor all of one scale.
template <class T>
__global__ void fill_kernel(T* out, index_t n, std::uint64_t salt) {
  for (index_t i = blockIdx.x * index_t{blockDim.x} + threadIdx.x; i < n; i += index_t{gridDim.x} * blockDim.x) {
    std::uint64_t z = (static_cast<std::uint64_t>(i) + (salt << 40)) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 31)) * 0xD6E8FEB86659FD93u;
    float sum = 0.0f;
    for (int j = 0; j < 4; ++j) sum += static_cast<float>(z >> (16 * j) & 0xFFFFu) * 0x1p-16f - 0.5f;
    out[i] = T(sum * static_cast<float>(1 << (i >> 10) % 7) * 0.125f);
  }
}

// Reads `In` bytes and writes `Out` and `Scales` bytes an item, in 16-byte vectors where there are so many, `Items`
// items a thread with all loads first.
template <int In, int Out, int Scales, int Items>
__global__ void __launch_bounds__(256) bytes_kernel(const std::uint8_t* in, const std::uint8_t* more, std::uint8_t* out,
                                                    std::uint8_t* scales, std::uint32_t count) {
  constexpr int words = In / 4;
  const std::uint32_t first = blockIdx.x * blockDim.x * Items + threadIdx.x;
  std::uint32_t w[Items][words];
#pragma unroll
  for (int g = 0; g < Items; ++g) {
    const std::uint32_t i = first + g * blockDim.x;
    if (i >= count) continue;
    const std::uint8_t* const p = in + index_t{i} * In;
    if constexpr (words % 4 == 0) {
#pragma unroll
      for (int j = 0; j < words; j += 4) {
        const uint4 v = *reinterpret_cast<const uint4*>(p + 4 * j);
        w[g][j] = v.x, w[g][j + 1] = v.y, w[g][j + 2] = v.z, w[g][j + 3] = v.w;
      }
    } else {
      static_assert(words == 1);
      w[g][0] = *reinterpret_cast<const std::uint32_t*>(p) ^ more[i / 2];
    }
  }
#pragma unroll
  for (int g = 0; g < Items; ++g) {
    const std::uint32_t i = first + g * blockDim.x;
    if (i >= count) continue;
    std::uint32_t mixed[4] = {1, 2, 3, 4};
#pragma unroll
    for (int j = 0; j < words; ++j) mixed[j % 4] ^= w[g][j];
    if constexpr (words == 1) mixed[1] = mixed[2] = mixed[3] = mixed[0];
    if constexpr (Out == 0) {
      if ((mixed[0] ^ mixed[1]) == (mixed[2] ^ mixed[3])) scales[0] = 1;  // as good as never
    } else if constexpr (Out == 8) {
      reinterpret_cast<uint2*>(out)[i] = make_uint2(mixed[0] ^ mixed[2], mixed[1] ^ mixed[3]);
    } else {
#pragma unroll
      for (int j = 0; j < Out / 16; ++j) {
        reinterpret_cast<uint4*>(out)[index_t{i} * (Out / 16) + j] = make_uint4(mixed[0], mixed[1], mixed[2], mixed[3]);
      }
    }
    if constexpr (Scales == 1) scales[i] = static_cast<std::uint8_t>(mixed[0] ^ mixed[3]);
    if constexpr (Scales == 2) reinterpret_cast<std::uint16_t*>(scales)[i] = static_cast<std::uint16_t>(mixed[1]);
  }
}

// Memory that a ceiling moves bytes from or to: a buffer, or none.
struct region {
  void* data = nullptr;
  index_t bytes = 0;

  region() = default;
  template <class T>
  region(const buffer<T>& b) : data(b.data()), bytes(b.bytes()) {}  // NOLINT(google-explicit-constructor)
};

// Reads bytes_in bytes of `in`, and of `more` what belongs to them. What a region does not hold ends the program: a
// kernel that wrote further could change whatever lies there, the code of other kernels too.
template <int In, int Out, int Scales, int Items>
void move_bytes(const region& in, const region& more, const region& out, const region& scales, index_t bytes_in) {
  const index_t count = bytes_in / In;
  const bool fits = in.bytes >= bytes_in && (more.data == nullptr || more.bytes >= count / 2) &&
                    out.bytes >= count * Out && scales.bytes >= count * Scales;
  check(fits ? cudaSuccess : cudaErrorInvalidValue, "bytes that are moved in other memory than was allocated");
  bytes_kernel<In, Out, Scales, Items><<<static_cast<unsigned>(count / (256 * Items)), 256>>>(
      static_cast<const std::uint8_t*>(in.data), static_cast<const std::uint8_t*>(more.data),
      static_cast<std::uint8_t*>(out.data), static_cast<std::uint8_t*>(scales.data), static_cast<std::uint32_t>(count));
}

struct buffers {
  buffer<bf16> in, out, twice;
  buffer<float> wide;
  buffer<std::uint8_t> codes, scales, other_codes, other_scales;

  buffers(index_t n, std::uint64_t salt)
      : in(n),
        out(n),
        twice(2 * n),
        wide(n / 2),
        codes(n / 2),
        scales(n / 8),  // of both axes, where their bytes are moved by one kernel
        other_codes(n / 2),
        other_scales(n / 16) {
    fill_kernel<<<2048, 256>>>(in.data(), n, salt);
    fill_kernel<<<2048, 256>>>(wide.data(), n / 2, salt + 100);
  }
};

void run(index_t rows, index_t cols, int sets, int batch, int rounds, std::FILE* csv) {
  const index_t n = rows * cols;
  std::vector<std::unique_ptr<buffers>> all;
  for (int i = 0; i < sets; ++i) all.push_back(std::make_unique<buffers>(n, static_cast<std::uint64_t>(i)));
  buffer<float> reference(1), data(2), amax(2);
  const auto workspace = std::span<std::byte>(reinterpret_cast<std::byte*>(amax.data()), 2 * sizeof(float));
  const float held = 16.0f;  // no number is larger
  check(cudaMemcpy(reference.data(), &held, sizeof held, cudaMemcpyHostToDevice), "cudaMemcpy");
  check(cudaDeviceSynchronize(), "fill");

  const auto set = [&](int i) -> buffers& { return *all[static_cast<std::size_t>(i % sets)]; };
  const auto input = [&](int i) { return ms::matrix(static_cast<const bf16*>(set(i).in.data()), rows, cols); };
  const auto wide = [&](int i) { return ms::matrix(static_cast<const float*>(set(i).wide.data()), rows / 2, cols); };
  const auto output = [&](int i) { return ms::matrix(set(i).out.data(), rows, cols); };
  const auto one_of_two = [&](int i, int which) { return ms::matrix(set(i).twice.data() + which * n, rows, cols); };
  const auto view = [&]<class S>(S, int i, index_t r, index_t k, bool other = false) {
    auto& b = set(i);
    return ms::quantized_view<S>{(other ? b.other_codes : b.codes).data(),
                                 (other ? b.other_scales : b.scales).data(),
                                 data.data() + (other ? 1 : 0),
                                 r,
                                 k,
                                 k / 2,
                                 k / S::block::columns};
  };
  const ms::cuda executor;
  const ms::quantize_options options{.reference = reference.data()};
  const ms::quantize_options down{.axis = ms::axis::col, .reference = reference.data()};
  const ms::hadamard_options transform{.signs = ms::hadamard_signs::transformer_engine()};
  const ms::hadamard_options transform_down{.signs = transform.signs, .axis = ms::axis::col};
  buffer<ms::hadamard_signs> signs(1);
  check(cudaMemcpy(signs.data(), &transform.signs, sizeof(ms::hadamard_signs), cudaMemcpyHostToDevice), "cudaMemcpy");
  const ms::hadamard_options read{.read_signs = signs.data()};
  const ms::hadamard_options read_down{.axis = ms::axis::col, .read_signs = signs.data()};
  const ms::nearest_even nearest;
  const ms::stochastic_midpoint8 draws{5, 7};
  const double elements = static_cast<double>(n), rows16 = elements * 2.5625, rows32 = elements * 2.53125;
  const double squares = elements * (2.5 + 1.0 / 256), floats = elements / 2 * 4.5625, twice = elements * 4;
  const double both = elements * (2 + 2 * 0.5625);

  std::vector<operation> operations = {
      {"bytes: bf16 -> codes, scales of 16", rows16, "",
       [&](int i) { move_bytes<64, 16, 2, 1>(set(i).in, {}, set(i).codes, set(i).scales, 2 * n); }},
      {"bytes: bf16 -> codes, scales of 32", rows32, "",
       [&](int i) { move_bytes<64, 16, 1, 1>(set(i).in, {}, set(i).codes, set(i).scales, 2 * n); }},
      {"bytes: bf16 -> codes alone", elements * 2.5, "",
       [&](int i) { move_bytes<64, 16, 0, 1>(set(i).in, {}, set(i).codes, {}, 2 * n); }},
      {"bytes: f32 -> codes, scales of 16", floats, "",
       [&](int i) { move_bytes<64, 8, 1, 2>(set(i).wide, {}, set(i).codes, set(i).scales, 2 * n); }},
      {"bytes: bf16 -> codes, scales of 16, twice", both, "",
       [&](int i) { move_bytes<32, 16, 2, 2>(set(i).in, {}, set(i).out, set(i).scales, 2 * n); }},
      {"bytes: bf16 alone", elements * 2, "",
       [&](int i) { move_bytes<64, 0, 0, 1>(set(i).in, {}, {}, set(i).scales, 2 * n); }},
      {"bytes: bf16 -> bf16, twice", elements * 6, "",
       [&](int i) { move_bytes<16, 32, 0, 1>(set(i).in, {}, set(i).twice, {}, 2 * n); }},
      {"bytes: codes, scales of 16 -> bf16", rows16, "",
       [&](int i) { move_bytes<4, 16, 0, 4>(set(i).codes, set(i).scales, set(i).out, {}, n / 2); }},
      {"bytes: bf16 -> bf16", twice, "",
       [&](int i) { move_bytes<16, 16, 0, 1>(set(i).in, {}, set(i).out, {}, 2 * n); }},
      {"cudaMemcpyAsync, device to device", twice, "",
       [&](int i) {
         check(cudaMemcpyAsync(set(i).out.data(), set(i).in.data(), static_cast<std::size_t>(2 * n),
                               cudaMemcpyDeviceToDevice),
               "cudaMemcpyAsync");
       }},
      {"quantize bf16, ue5m3_fp4", rows16, "bytes: bf16 -> codes, scales of 16",
       [&](int i) { ms::quantize_with(executor, input(i), view(ms::ue5m3_fp4{}, i, rows, cols), nearest, options); }},
      {"quantize bf16, nvfp4", rows16, "bytes: bf16 -> codes, scales of 16",
       [&](int i) { ms::quantize_with(executor, input(i), view(ms::nvfp4{}, i, rows, cols), nearest, options); }},
      {"quantize bf16, ue5m3_fp4_b32", rows32, "bytes: bf16 -> codes, scales of 32",
       [&](int i) {
         ms::quantize_with(executor, input(i), view(ms::ue5m3_fp4_b32{}, i, rows, cols), nearest, options);
       }},
      {"quantize bf16, mxfp4", rows32, "bytes: bf16 -> codes, scales of 32",
       [&](int i) { ms::quantize_with(executor, input(i), view(ms::mxfp4{}, i, rows, cols), nearest); }},
      {"quantize f32, ue5m3_fp4", floats, "bytes: f32 -> codes, scales of 16",
       [&](int i) {
         ms::quantize_with(executor, wide(i), view(ms::ue5m3_fp4{}, i, rows / 2, cols), nearest, options);
       }},
      {"quantize bf16, ue5m3_fp4, 128x4 scales", rows16, "bytes: bf16 -> codes, scales of 16",
       [&](int i) {
         auto v = view(ms::ue5m3_fp4{}, i, rows, cols);
         v.layout = ms::scale_layout::tile_128x4;
         ms::quantize_with(executor, input(i), v, nearest, options);
       }},
      {"quantize bf16, ue5m3_fp4, stochastic", rows16, "bytes: bf16 -> codes, scales of 16",
       [&](int i) { ms::quantize_with(executor, input(i), view(ms::ue5m3_fp4{}, i, rows, cols), draws, options); }},
      {"quantize bf16, ue5m3_fp4_2d", squares, "bytes: bf16 -> codes alone",
       [&](int i) {
         ms::quantize_with(executor, input(i), view(ms::ue5m3_fp4_2d{}, i, rows, cols), nearest, options);
       }},
      {"Hadamard-16 and quantize bf16, ue5m3_fp4", rows16, "bytes: bf16 -> codes, scales of 16",
       [&](int i) {
         ms::hadamard_quantize_with(executor, input(i), view(ms::ue5m3_fp4{}, i, rows, cols), nearest, transform,
                                    options);
       }},
      {"Hadamard-16 and quantize bf16, ue5m3_fp4, signs read", rows16, "bytes: bf16 -> codes, scales of 16",
       [&](int i) {
         ms::hadamard_quantize_with(executor, input(i), view(ms::ue5m3_fp4{}, i, rows, cols), nearest, read, options);
       }},
      {"quantize bf16 along columns, ue5m3_fp4", rows16, "bytes: bf16 -> codes, scales of 16",
       [&](int i) { ms::quantize_with(executor, input(i), view(ms::ue5m3_fp4{}, i, cols, rows), nearest, down); }},
      {"quantize bf16 along both axes, ue5m3_fp4", both, "bytes: bf16 -> codes, scales of 16, twice",
       [&](int i) {
         ms::quantize_both_with(executor, input(i), view(ms::ue5m3_fp4{}, i, rows, cols),
                                view(ms::ue5m3_fp4{}, i, cols, rows, true), nearest, nearest, options, options);
       }},
      {"dequantize ue5m3_fp4 -> bf16", rows16, "bytes: codes, scales of 16 -> bf16",
       [&](int i) { ms::dequantize_into(executor, view(ms::ue5m3_fp4{}, i, rows, cols), output(i)); }},
      {"fake-quantize bf16 -> bf16, ue5m3_fp4", twice, "bytes: bf16 -> bf16",
       [&](int i) { ms::fake_quantize_into<ms::ue5m3_fp4>(executor, input(i), output(i), options); }},
      {"amax bf16", elements * 2, "bytes: bf16 alone", [&](int i) { ms::amax_into(executor, input(i), amax.data()); }},
      {"quantize bf16 with its own amax, ue5m3_fp4", rows16 + elements * 2, "bytes: bf16 -> codes, scales of 16",
       [&](int i) {
         ms::quantize_with(executor, input(i), view(ms::ue5m3_fp4{}, i, rows, cols), nearest, {}, workspace);
       }},
      {"amax of Hadamard-16 bf16", elements * 2, "bytes: bf16 alone",
       [&](int i) { ms::hadamard_amax_into(executor, input(i), amax.data(), transform); }},
      {"amax of Hadamard-16 bf16, signs read", elements * 2, "bytes: bf16 alone",
       [&](int i) { ms::hadamard_amax_into(executor, input(i), amax.data(), read); }},
      {"amax of Hadamard-16 bf16 along columns", elements * 2, "bytes: bf16 alone",
       [&](int i) { ms::hadamard_amax_into(executor, input(i), amax.data(), transform_down); }},
      {"amax of Hadamard-16 bf16 along columns, signs read", elements * 2, "bytes: bf16 alone",
       [&](int i) { ms::hadamard_amax_into(executor, input(i), amax.data(), read_down); }},
      {"Hadamard-16 and quantize bf16 along columns, own amax, nvfp4", rows16 + elements * 2,
       "bytes: bf16 -> codes, scales of 16",
       [&](int i) {
         ms::hadamard_quantize_with(executor, input(i), view(ms::nvfp4{}, i, cols, rows), nearest, transform,
                                    {.axis = ms::axis::col}, workspace);
       }},
      {"Hadamard-16 and fake-quantize bf16 along columns, nvfp4", twice, "bytes: bf16 -> bf16",
       [&](int i) {
         ms::hadamard_fake_quantize_into<ms::nvfp4>(executor, input(i), output(i), transform, down, workspace);
       }},
      {"Hadamard-16, fake-quantize columns, nvfp4, signs read", twice, "bytes: bf16 -> bf16",
       [&](int i) {
         ms::hadamard_fake_quantize_into<ms::nvfp4>(executor, input(i), output(i), read, down, workspace);
       }},
      {"fake-quantize rows, Hadamard-16 columns, nvfp4", elements * 6, "bytes: bf16 -> bf16, twice",
       [&](int i) {
         ms::hadamard_fake_quantize_both_into<ms::nvfp4>(executor, input(i), one_of_two(i, 0), one_of_two(i, 1),
                                                         transform, options, options, workspace);
       }},
      {"the same, own amaxes, drawn", elements * 8, "bytes: bf16 -> bf16, twice",
       [&](int i) {
         const ms::quantize_options drawn{.rounding = ms::stochastic_floor8{5, 7}};
         ms::hadamard_fake_quantize_both_into<ms::nvfp4>(executor, input(i), one_of_two(i, 0), one_of_two(i, 1),
                                                         transform, drawn, drawn, workspace);
       }},
      {"the same, own amaxes, drawn, signs read", elements * 8, "bytes: bf16 -> bf16, twice",
       [&](int i) {
         const ms::quantize_options drawn{.rounding = ms::stochastic_floor8{5, 7}};
         ms::hadamard_fake_quantize_both_into<ms::nvfp4>(executor, input(i), one_of_two(i, 0), one_of_two(i, 1), read,
                                                         drawn, drawn, workspace);
       }},
  };
  compare(std::to_string(rows) + "x" + std::to_string(cols), operations, rounds, batch, csv);
  check(cudaDeviceSynchronize(), "the end");
}

}  // namespace

int main(int argc, char** argv) {
  if (!find_gpu()) return 0;
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 21;
  std::FILE* const csv = argc > 2 ? std::fopen(argv[2], "w") : nullptr;
  run(32768, 384, 8, 8, rounds, csv);    // 24 MiB of BF16, eight sets: a step's tokens in a small model
  run(8192, 8192, 4, 8, rounds, csv);    // 128 MiB of BF16, four sets
  run(32768, 32768, 1, 1, rounds, csv);  // 2 GiB
  if (csv != nullptr) std::fclose(csv);
  return 0;
}
