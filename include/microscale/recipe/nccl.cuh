// The maximum of a sampled amax over the ranks of an NCCL communicator, for update_reference and linear. Where there is
// no <nccl.h>, this header is empty.
#pragma once

#if __has_include(<nccl.h>)

#include <cuda_runtime.h>
#include <nccl.h>

#include "../cuda/executor.cuh"
#include "../tensor/error.hpp"

namespace microscale {

// A collective: every rank must call it at the same time, which ranks at the same step with equal reference states do.
// `buffer` is one float in device memory of the communicator's device, which the caller keeps; nothing is allocated
// here.
struct nccl_maximum {
  ncclComm_t communicator = nullptr;
  cudaStream_t stream = nullptr;
  float* buffer = nullptr;

  // Of a number on the host: waits for the stream.
  float operator()(float amax) const {
    check_cuda("copy of an amax to the device",
               cudaMemcpyAsync(buffer, &amax, sizeof(float), cudaMemcpyHostToDevice, stream));
    on_device(buffer);
    check_cuda("copy of an amax to the host",
               cudaMemcpyAsync(&amax, buffer, sizeof(float), cudaMemcpyDeviceToHost, stream));
    check_cuda("wait for an amax", cudaStreamSynchronize(stream));
    return amax;
  }

  // Of a number in device memory, in place: enqueues, and waits for nothing.
  void on_device(float* amax) const {
    const ncclResult_t result = ncclAllReduce(amax, amax, 1, ncclFloat, ncclMax, communicator, stream);
    if (result != ncclSuccess) detail::fail("ncclAllReduce", "success", ncclGetErrorString(result));
  }

 private:
  static void check_cuda(const char* what, cudaError_t code) {
    if (code != cudaSuccess) throw cuda_error(what, code);
  }
};

}  // namespace microscale

#endif
