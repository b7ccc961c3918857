// conformance_vectors_cuda FILE...: the vector files through the library on a GPU. Ends as conformance_vectors does.
#include "../../conformance/runner.hpp"
#include "device_executor.cuh"

int main(int argc, char** argv) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("no GPU here\n");
    return 0;
  }
  return conformance::run_files<conformance::device_executor>(std::vector<const char*>(argv + 1, argv + argc));
}
