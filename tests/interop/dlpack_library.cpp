// For check_packages.py: DLPack tensors made and taken by this library, behind a C interface that ctypes can call.
#include <microscale/interop/dlpack.hpp>

#include <memory>
#include <vector>

namespace ms = microscale;
namespace dlpack = ms::interop::dlpack;

namespace {

int alive = 0;

struct counted {
  std::vector<float> x;
  explicit counted(std::vector<float> values) : x(std::move(values)) { ++alive; }
  ~counted() { --alive; }
};

// The first four of six columns of 0 ... 17.
std::shared_ptr<counted> make() {
  std::vector<float> x;
  for (int i = 0; i < 18; ++i) x.push_back(static_cast<float>(i));
  return std::make_shared<counted>(std::move(x));
}

}  // namespace

extern "C" {

void* export_versioned() {
  auto owner = make();
  return dlpack::export_matrix(ms::matrix(owner->x.data(), 3, 4, 6), owner);
}
void* export_unversioned() {
  auto owner = make();
  return dlpack::export_matrix_unversioned(ms::matrix(owner->x.data(), 3, 4, 6), owner);
}
int matrices_alive() { return alive; }

// The sum over a managed tensor; -1 where it is refused.
double sum_of(const void* managed) {
  try {
    const auto x = dlpack::import_matrix<const float>(static_cast<const dlpack::managed_tensor*>(managed)->dl_tensor);
    double sum = 0;
    for (ms::index_t r = 0; r < x.rows; ++r) {
      for (ms::index_t c = 0; c < x.cols; ++c) sum += static_cast<double>(x(r, c));
    }
    return sum;
  } catch (const ms::error&) {
    return -1.0;
  }
}

}  // extern "C"
