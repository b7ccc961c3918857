// ms::cuda: whole-tensor calls on a stream of the caller's.
//
// Every function takes the names, options and meanings of the host's; what pointers there point to (matrices, codes,
// scales, datum, options.reference, workspace) is device memory here. A call only enqueues work: it allocates nothing,
// waits for nothing, changes neither the current device nor the caller's error state, and can be captured in a graph.
// Kernels run on the current device, which must be the stream's.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "../number/config.hpp"
#include "../tensor/error.hpp"
#include "../tensor/view.hpp"

namespace microscale {

// Thrown when the CUDA runtime refuses work that a call enqueues.
class cuda_error : public error {
 public:
  cuda_error(const char* what, cudaError_t code)
      : error(std::string("microscale: ") + what + ": " + cudaGetErrorString(code)), code_(code) {}

  cudaError_t code() const noexcept { return code_; }

 private:
  cudaError_t code_;
};

// What device code found wrong with the *data* of calls, which the host learns of when it copies this word back after
// synchronizing. Calls only ever lower the word, so several may share one; all bits set means that all is well, which
// cudaMemsetAsync(status, 0xFF, sizeof(cuda_status), stream) says again.
//   a position      under nonfinite::reject, the lowest position (row * cols + column of the input) of a NaN or an
//                   infinity. What was written is what nonfinite::poison writes.
//   bad_reference   a reference amax is NaN, negative, or infinite where the scheme does not take that. Everything that
//                   was written under it is poison: each block scale that of a NaN, each code that of a NaN, the datum
//                   NaN.
struct cuda_status {
  static constexpr std::uint64_t all_well = ~std::uint64_t{0};
  static constexpr std::uint64_t reference_refused = all_well - 1;

  std::uint64_t word = all_well;

  MICROSCALE_HD constexpr bool ok() const noexcept { return word == all_well; }
  MICROSCALE_HD constexpr bool bad_reference() const noexcept { return word == reference_refused; }
  MICROSCALE_HD constexpr bool nonfinite_input() const noexcept { return word < reference_refused; }
};

// How kernels are launched. No result depends on it.
struct cuda_launch {
  unsigned threads = 256;          // of a thread block: a multiple of 32, at most 256; some kernels take fewer
  unsigned max_blocks = 1u << 20;  // thread blocks of a grid; what is left over is done in a loop
};

// The executor: where a call is enqueued, and who is told what its data were found to be.
struct cuda {
  cudaStream_t stream = nullptr;
  cuda_status* status = nullptr;  // device memory, or null: nobody wants to know
  cuda_launch launch = {};
};

namespace detail::device {

inline constexpr unsigned largest_thread_block = 256;

// Turns the result of a runtime call into an exception, and takes back what the failed call left in the runtime's last
// error, unless the caller had an error pending there already.
inline void check_cuda(const char* what, cudaError_t code, cudaError_t pending) {
  if (code == cudaSuccess) return;
  if (pending == cudaSuccess) (void)cudaGetLastError();
  throw cuda_error(what, code);
}

inline int device_attribute(cudaDeviceAttr which) {
  int device = 0, value = 0;
  const cudaError_t pending = cudaPeekAtLastError();
  check_cuda("CUDA device", cudaGetDevice(&device), pending);
  check_cuda("CUDA device", cudaDeviceGetAttribute(&value, which, device), pending);
  return value;
}

inline void check_launch(const cuda_launch& launch) {
  if (launch.threads == 0 || launch.threads % 32 != 0 || launch.max_blocks == 0) {
    fail("CUDA launch", "a multiple of 32 threads and at least one block",
         std::to_string(launch.threads) + " and " + std::to_string(launch.max_blocks));
  }
}

// Enqueues kernel(arguments...) with enough thread blocks for `blocks`, at most as many as the executor allows.
template <class... Parameters, class... Arguments>
void launch(const cuda& executor, const char* what, void (*kernel)(Parameters...), index_t blocks,
            const Arguments&... arguments) {
  check_launch(executor.launch);
  const cudaError_t pending = cudaPeekAtLastError();
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(smaller(blocks, index_t{executor.launch.max_blocks})));
  config.blockDim = dim3(executor.launch.threads);
  config.stream = executor.stream;
  check_cuda(what, cudaLaunchKernelEx(&config, kernel, arguments...), pending);
}

inline void clear_bytes(const cuda& executor, const char* what, void* data, std::size_t bytes) {
  const cudaError_t pending = cudaPeekAtLastError();
  check_cuda(what, cudaMemsetAsync(data, 0, bytes, executor.stream), pending);
}

}  // namespace detail::device
}  // namespace microscale
