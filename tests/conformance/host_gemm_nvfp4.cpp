#include "execute_gemm.hpp"

namespace conformance {

template std::optional<outcome> scheme_family<host_executor, nvfp4_family>::gemm(const gemm_request&,
                                                                                 const std::string&);
template std::optional<outcome> scheme_family<host_executor, drawn_family>::gemm(const gemm_request&,
                                                                                 const std::string&);

}  // namespace conformance
