// GEMMs on FP4 operands against cuBLAS BF16 over the same values, on one GPU.
//
//   gemm_cuda_bench [large | skinny | all] [FILE.csv]
//
// Operands are normal numbers quantized by the library, and what cuBLAS reads is those operands decoded (the weights,
// for skinny products). Contenders of a row run in turn, as graphs that walk through enough copies of the weights to
// leave the L2 cache; figures are medians.
#include <microscale/cuda/skinny_gemm.cuh>
#include <microscale/cuda/vendor_gemm.cuh>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace {

namespace ms = microscale;
using ms::index_t;

void check(cudaError_t code) {
  if (code == cudaSuccess) return;
  std::printf("CUDA: %s\n", cudaGetErrorString(code));
  std::exit(1);
}
void check(cublasStatus_t code) {
  if (code == CUBLAS_STATUS_SUCCESS) return;
  std::printf("cuBLAS: %s\n", cublasGetStatusString(code));
  std::exit(1);
}

template <class T>
class device_array {
 public:
  explicit device_array(index_t n) { check(cudaMalloc(&data_, static_cast<std::size_t>(n) * sizeof(T))); }
  ~device_array() { cudaFree(data_); }
  device_array(const device_array&) = delete;
  device_array& operator=(const device_array&) = delete;
  T* data() const { return data_; }

 private:
  T* data_ = nullptr;
};

// Normal numbers; each run of 16 times a power of two out of `binades`, if that is more than one.
template <int Threads>
__global__ void fill_kernel(ms::value<ms::bf16>* out, index_t n, unsigned seed, int binades) {
  for (index_t i = blockIdx.x * index_t{Threads} + threadIdx.x; i < n / 4; i += index_t{gridDim.x} * Threads) {
    const auto w = ms::philox4x32({seed, 1}, static_cast<std::uint64_t>(i));
    const auto run = ms::philox4x32({seed, 2}, static_cast<std::uint64_t>(i / 4));
    const float scale = exp2f(static_cast<float>(run.word[0] % static_cast<unsigned>(binades)) - 7.0f);
    for (int half = 0; half < 2; ++half) {
      const float radius = sqrtf(-2.0f * logf((static_cast<float>(w.word[2 * half]) + 1.0f) * 0x1p-32f));
      const float angle = static_cast<float>(w.word[2 * half + 1]) * 0x1p-31f;
      out[4 * i + 2 * half] = ms::from_float<ms::value<ms::bf16>>(radius * cospif(angle) * scale);
      out[4 * i + 2 * half + 1] = ms::from_float<ms::value<ms::bf16>>(radius * sinpif(angle) * scale);
    }
  }
}

void fill(ms::value<ms::bf16>* out, index_t n, unsigned seed, int binades = 1) {
  fill_kernel<256><<<1024, 256>>>(out, n, seed, binades);
  check(cudaGetLastError());
}

// A quantized matrix and its values in BF16.
template <class S>
struct operand {
  device_array<ms::value<ms::bf16>> decoded;
  device_array<std::uint8_t> codes;
  device_array<typename S::scale::storage> scales;
  device_array<float> tensor_scale;  // what is stored, and the reference
  ms::quantized_view<const S> view;

  operand(index_t rows, index_t cols, unsigned seed, int binades = 1)
      : decoded(rows * cols),
        codes(ms::size_of<S>(rows, cols).code_bytes),
        scales(ms::size_of<S>(rows, cols).scales),
        tensor_scale(2) {
    const auto size = ms::size_of<S>(rows, cols);
    const ms::quantized_view<S> q{codes.data(), scales.data(),   tensor_scale.data(), rows,
                                  cols,         size.code_pitch, size.scale_pitch};
    const float reference = 6.0f;
    check(cudaMemcpy(tensor_scale.data() + 1, &reference, sizeof reference, cudaMemcpyHostToDevice));
    fill(decoded.data(), rows * cols, seed, binades);
    ms::quantize_with(ms::cuda{}, ms::matrix(const_cast<const ms::value<ms::bf16>*>(decoded.data()), rows, cols), q,
                      ms::nearest_even{}, {.reference = S::has_tensor_scale ? tensor_scale.data() + 1 : nullptr});
    ms::dequantize_into(ms::cuda{}, q, ms::matrix(decoded.data(), rows, cols));
    check(cudaDeviceSynchronize());
    view = q;
  }
};

class blas {
 public:
  blas() : workspace_(index_t{64} << 20) {
    check(cublasCreate(&handle_));
    check(cublasSetWorkspace(handle_, workspace_.data(), std::size_t{64} << 20));
  }
  ~blas() { cublasDestroy(handle_); }
  blas(const blas&) = delete;
  blas& operator=(const blas&) = delete;
  cublasHandle_t handle() const { return handle_; }

  // c = a b^T, row-major: m x n, m x k, n x k.
  void multiply(cudaStream_t stream, const void* a, const void* b, float* c, index_t m, index_t n, index_t k) const {
    const float one = 1.0f, zero = 0.0f;
    check(cublasSetStream(handle_, stream));
    check(cublasGemmEx(handle_, CUBLAS_OP_T, CUBLAS_OP_N, static_cast<int>(n), static_cast<int>(m), static_cast<int>(k),
                       &one, b, CUDA_R_16BF, static_cast<int>(k), a, CUDA_R_16BF, static_cast<int>(k), &zero, c,
                       CUDA_R_32F, static_cast<int>(n), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
  }

 private:
  device_array<std::byte> workspace_;
  cublasHandle_t handle_ = nullptr;
};

// Something to time: run(stream, copy) enqueues one product with copy `copy` of the operands.
class contender {
 public:
  contender(std::string name, int copies, const std::function<void(cudaStream_t, int)>& run)
      : name_(std::move(name)), copies_(copies) {
    cudaStream_t stream;
    check(cudaStreamCreate(&stream));
    run(stream, 0);
    check(cudaStreamSynchronize(stream));
    cudaGraph_t graph;
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < copies; ++i) run(stream, i);
    check(cudaStreamEndCapture(stream, &graph));
    check(cudaGraphInstantiate(&executable_, graph, 0));
    check(cudaGraphDestroy(graph));
    check(cudaStreamDestroy(stream));
  }
  const std::string& name() const { return name_; }
  void time(cudaEvent_t begin, cudaEvent_t end) {
    check(cudaEventRecord(begin, nullptr));
    check(cudaGraphLaunch(executable_, nullptr));
    check(cudaEventRecord(end, nullptr));
    check(cudaEventSynchronize(end));
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end));
    times_.push_back(ms / static_cast<float>(copies_));
  }
  // In milliseconds, for one product.
  float median() {
    std::sort(times_.begin(), times_.end());
    return times_[times_.size() / 2];
  }

 private:
  std::string name_;
  int copies_;
  cudaGraphExec_t executable_ = nullptr;
  std::vector<float> times_;
};

class table {
 public:
  explicit table(const char* path) : csv_(path == nullptr ? nullptr : std::fopen(path, "w")) {
    if (csv_ != nullptr) std::fprintf(csv_, "what,m,n,k,contender,microseconds,tflops,relative_to_cublas\n");
  }
  ~table() {
    if (csv_ != nullptr) std::fclose(csv_);
  }
  table(const table&) = delete;
  table& operator=(const table&) = delete;

  // Times all contenders in turn; the first is cuBLAS.
  void row(const std::string& what, index_t m, index_t n, index_t k, std::vector<contender>& contenders) {
    cudaEvent_t begin, end;
    check(cudaEventCreate(&begin));
    check(cudaEventCreate(&end));
    constexpr int rounds = 11;
    for (int i = 0; i < rounds; ++i) {
      for (contender& c : contenders) c.time(begin, end);
    }
    std::printf("%-18s %5lld %6lld %6lld", what.c_str(), static_cast<long long>(m), static_cast<long long>(n),
                static_cast<long long>(k));
    const double baseline = static_cast<double>(contenders.front().median());
    for (contender& c : contenders) {
      const double t = static_cast<double>(c.median());
      const double rate = 2e-9 * static_cast<double>(m * n) * static_cast<double>(k) / t;
      std::printf(" | %s %.1f us %.1f TF %.2fx", c.name().c_str(), t * 1e3, rate, baseline / t);
      if (csv_ != nullptr) {
        std::fprintf(csv_, "%s,%lld,%lld,%lld,%s,%.2f,%.1f,%.3f\n", what.c_str(), static_cast<long long>(m),
                     static_cast<long long>(n), static_cast<long long>(k), c.name().c_str(), t * 1e3, rate,
                     baseline / t);
      }
    }
    std::printf("\n");
    std::fflush(stdout);
    check(cudaEventDestroy(begin));
    check(cudaEventDestroy(end));
  }

 private:
  std::FILE* csv_;
};

template <class S>
void large(table& out, const blas& b, const char* what, index_t m, index_t n, index_t k, int binades = 1) {
  const operand<S> x(m, k, 1, binades), w(n, k, 2, binades);
  device_array<float> c(m * n);
  const auto y = ms::matrix(c.data(), m, n);
  const std::size_t k64_bytes = ms::gemm_workspace<ms::blackwell_k64>(ms::cuda{}, x.view, w.view);
  const std::span<std::byte> none;
  const std::size_t vendor_bytes = ms::gemm_workspace<ms::vendor>(ms::cuda_blas{}, x.view, w.view);
  device_array<std::byte> memory(static_cast<index_t>(std::max(k64_bytes, vendor_bytes)));
  std::vector<contender> all;
  all.emplace_back("cuBLAS BF16", 1,
                   [&](cudaStream_t s, int) { b.multiply(s, x.decoded.data(), w.decoded.data(), c.data(), m, n, k); });
  all.emplace_back("decode + cuBLAS", 1, [&](cudaStream_t s, int) {
    ms::gemm_into<ms::vendor>(ms::cuda_blas{.handle = b.handle(), .executor = {.stream = s}}, x.view, w.view, y, {},
                              std::span<std::byte>(memory.data(), vendor_bytes));
  });
  all.emplace_back("decode alone", 1, [&](cudaStream_t s, int) {
    auto* const left = reinterpret_cast<ms::value<ms::bf16>*>(memory.data());
    ms::detail::device::decode_operands(ms::cuda{.stream = s}, x.view, left, w.view, left + m * k, k, nullptr);
  });
  all.emplace_back("f32_blocks", 1, [&](cudaStream_t s, int) {
    ms::gemm_into<ms::f32_blocks>(ms::cuda{.stream = s}, x.view, w.view, y, {},
                                  std::span<std::byte>(memory.data(), k64_bytes));
  });
  all.emplace_back("blackwell_k64", 1, [&](cudaStream_t s, int) {
    ms::gemm_into<ms::blackwell_k64>(ms::cuda{.stream = s}, x.view, w.view, y, {},
                                     std::span<std::byte>(memory.data(), k64_bytes));
  });
  // The definition's kernel takes seconds for large products, and for these scales: their sums need more than binary64.
  if (binades == 1) {
    const std::span<std::byte> workspace(memory.data(), k64_bytes);
    all.emplace_back("exact_f32", 1, [&, workspace](cudaStream_t s, int) {
      ms::gemm_into<ms::exact_f32>(ms::cuda{.stream = s}, x.view, w.view, y, {}, workspace);
    });
  }
  if (m * n * k <= index_t{1} << 30) {
    all.emplace_back("exact_f32 by definition", 1, [&](cudaStream_t s, int) {
      ms::gemm_into<ms::exact_f32>(ms::cuda{.stream = s}, x.view, w.view, y, {}, none);
    });
    all.emplace_back("k64 by definition", 1, [&](cudaStream_t s, int) {
      ms::gemm_into<ms::blackwell_k64>(ms::cuda{.stream = s}, x.view, w.view, y, {}, none);
    });
  }
  out.row(what, m, n, k, all);
}

// Experts of equal height in one call, as a loop of cuBLAS's would take them.
template <class S>
void batched(table& out, const blas& b, const char* what, index_t groups, index_t m, index_t n, index_t k) {
  const operand<S> x(groups * m, k, 1), w(groups * n, k, 2);
  device_array<float> c(groups * m * n);
  const auto y = ms::matrix(c.data(), groups * m, n);
  const ms::cuda_blas executor{.handle = b.handle()};
  const std::size_t vendor_bytes = ms::batched_gemm_workspace<ms::vendor>(executor, x.view, w.view, groups);
  const std::size_t k64_bytes = ms::batched_gemm_workspace<ms::blackwell_k64>(ms::cuda{}, x.view, w.view, groups);
  device_array<std::byte> memory(static_cast<index_t>(std::max(k64_bytes, vendor_bytes)));
  std::vector<contender> all;
  all.emplace_back("cuBLAS BF16", 1, [&](cudaStream_t s, int) {
    for (index_t g = 0; g < groups; ++g) {
      b.multiply(s, x.decoded.data() + g * m * k, w.decoded.data() + g * n * k, c.data() + g * m * n, m, n, k);
    }
  });
  all.emplace_back("decode + cuBLAS", 1, [&](cudaStream_t s, int) {
    ms::batched_gemm_into<ms::vendor>(ms::cuda_blas{.handle = b.handle(), .executor = {.stream = s}}, x.view, w.view, y,
                                      groups, {}, std::span<std::byte>(memory.data(), vendor_bytes));
  });
  all.emplace_back("blackwell_k64", 1, [&](cudaStream_t s, int) {
    ms::batched_gemm_into<ms::blackwell_k64>(ms::cuda{.stream = s}, x.view, w.view, y, groups, {},
                                             std::span<std::byte>(memory.data(), k64_bytes));
  });
  out.row(what, groups * m, n, k, all);
}

template <class S>
void skinny(table& out, const blas& b, const char* what, index_t n, index_t k, std::initializer_list<index_t> batches) {
  const int copies = static_cast<int>(std::clamp(index_t{400000000} / (n * k), index_t{2}, index_t{24}));
  std::vector<std::unique_ptr<operand<S>>> weights;
  std::vector<std::unique_ptr<device_array<std::byte>>> memory;
  std::vector<ms::repacked_view<const S>> repacked;
  for (int i = 0; i < copies; ++i) {
    weights.push_back(std::make_unique<operand<S>>(n, k, static_cast<unsigned>(i)));
    memory.push_back(std::make_unique<device_array<std::byte>>(static_cast<index_t>(ms::repacked_bytes<S>(n, k))));
    repacked.push_back(ms::repack_into(ms::cuda{}, weights.back()->view, memory.back()->data()));
  }
  for (const index_t m : batches) {
    device_array<ms::value<ms::bf16>> x(m * k);
    device_array<float> y(m * n);
    fill(x.data(), m * k, 99);
    check(cudaDeviceSynchronize());
    const auto in = ms::matrix(const_cast<const ms::value<ms::bf16>*>(x.data()), m, k);
    const auto c = ms::matrix(y.data(), m, n);
    const auto at = [](int i) { return static_cast<std::size_t>(i); };
    std::vector<contender> all;
    all.emplace_back("cuBLAS BF16", copies, [&](cudaStream_t s, int i) {
      b.multiply(s, x.data(), weights[at(i)]->decoded.data(), y.data(), m, n, k);
    });
    all.emplace_back("as stored", copies, [&](cudaStream_t s, int i) {
      ms::skinny_gemm_into(ms::cuda{.stream = s}, in, weights[at(i)]->view, c);
    });
    all.emplace_back("repacked", copies, [&](cudaStream_t s, int i) {
      ms::skinny_gemm_into(ms::cuda{.stream = s}, in, repacked[at(i)], c);
    });
    out.row(what, m, n, k, all);
  }
}

}  // namespace

int main(int argc, char** argv) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("no GPU here\n");
    return 77;
  }
  const std::string which = argc > 1 ? argv[1] : "all";
  table out(argc > 2 ? argv[2] : nullptr);
  const blas b;
  if (which != "skinny") {
    for (const index_t s : {4096, 8192}) large<ms::ue5m3_single>(out, b, "UE5M3", s, s, s);
    for (const index_t s : {4096, 8192}) large<ms::ue5m3_single>(out, b, "UE5M3 over 14 binades", s, s, s, 14);
    large<ms::nvfp4>(out, b, "NVFP4", 1024, 1024, 1024);
    for (const index_t m : {128, 1024, 8192}) large<ms::ue5m3_single>(out, b, "UE5M3", m, 16384, 4096);
    large<ms::mxfp4>(out, b, "MXFP4", 8192, 8192, 8192);
    large<ms::nvfp4>(out, b, "NVFP4", 8192, 8192, 8192);
    batched<ms::nvfp4>(out, b, "8 x NVFP4", 8, 512, 4096, 4096);
  }
  if (which != "large") {
    skinny<ms::nvfp4>(out, b, "NVFP4", 16384, 16384, {1, 4, 8, 16});
    skinny<ms::nvfp4>(out, b, "NVFP4", 8192, 8192, {1, 4, 8, 16});
    skinny<ms::nvfp4>(out, b, "NVFP4", 4096, 4096, {1, 4, 8, 16});
    skinny<ms::nvfp4>(out, b, "NVFP4", 16384, 4096, {1, 8});
    skinny<ms::nvfp4>(out, b, "NVFP4", 4096, 16384, {1, 8});
    skinny<ms::ue5m3_single>(out, b, "UE5M3", 16384, 16384, {1, 4, 8});
    skinny<ms::mxfp4>(out, b, "MXFP4", 16384, 16384, {1, 4, 8});
  }
  return 0;
}
