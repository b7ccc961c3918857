#include "execute_schemes.hpp"

namespace conformance {

template std::optional<outcome> scheme_family<host_executor, nvfp4_family>::quantize(const quantize_request&,
                                                                                     const std::string&);
template std::optional<outcome> scheme_family<host_executor, nvfp4_family>::dequantize(const dequantize_request&,
                                                                                       const std::string&);
template std::optional<outcome> scheme_family<host_executor, drawn_family>::quantize(const quantize_request&,
                                                                                     const std::string&);
template std::optional<outcome> scheme_family<host_executor, drawn_family>::dequantize(const dequantize_request&,
                                                                                       const std::string&);

}  // namespace conformance
