#include "../../conformance/execute_schemes.hpp"
#include "device_executor.cuh"

namespace conformance {

template std::optional<outcome> scheme_family<device_executor, ue5m3_family>::quantize(const quantize_request&,
                                                                                       const std::string&);
template std::optional<outcome> scheme_family<device_executor, ue5m3_family>::dequantize(const dequantize_request&,
                                                                                         const std::string&);

}  // namespace conformance
