#include <map>

#include "operations.hpp"

namespace microscale_torch {

namespace {

struct tables {
  std::map<std::string, const scheme_operations*, std::less<>> schemes;
  std::map<std::string, gemm_operations, std::less<>> gemms;
  const device_operations* device = nullptr;
};

// Filled before main by the objects that the other source files define; a function's static, so that it exists by then.
tables& of(backend where) {
  static tables all[2];
  return all[static_cast<std::size_t>(where)];
}

std::string gemm_key(std::string_view a, std::string_view b, std::string_view accumulation) {
  return std::string(a).append(" x ").append(b).append(", ").append(accumulation);
}

std::string on(backend where) { return where == backend::cpu ? " on the CPU" : " on CUDA"; }

template <class Map>
const auto& look_up(const Map& map, const char* what, const std::string& key, backend where) {
  const auto found = map.find(key);
  if (found == map.end()) ms::detail::fail(what, "one that this extension was built with" + on(where), key);
  return found->second;
}

}  // namespace

void add_scheme(backend where, const scheme_operations* operations) {
  of(where).schemes[operations->facts().name] = operations;
}
void add_device(backend where, const device_operations* operations) { of(where).device = operations; }
void add_gemm(backend where, std::string_view a, std::string_view b, std::string_view accumulation,
              const gemm_operations& operations) {
  of(where).gemms[gemm_key(a, b, accumulation)] = operations;
}

const scheme_operations& find_scheme(backend where, std::string_view scheme) {
  return *look_up(of(where).schemes, "scheme", std::string(scheme), where);
}
const device_operations& find_device(backend where) {
  if (of(where).device == nullptr) ms::detail::fail("device", "one that this extension was built for", on(where));
  return *of(where).device;
}
const gemm_operations& find_gemm(backend where, std::string_view a, std::string_view b, std::string_view accumulation) {
  return look_up(of(where).gemms, "GEMM", gemm_key(a, b, accumulation), where);
}

}  // namespace microscale_torch
