#include "../../conformance/execute_gemm.hpp"
#include "device_executor.cuh"

namespace conformance {

template std::optional<outcome> scheme_family<device_executor, nvfp4_family>::gemm(const gemm_request&,
                                                                                   const std::string&);

}  // namespace conformance
