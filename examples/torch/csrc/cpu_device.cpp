#include "cpu.hpp"

namespace microscale_torch {
namespace {

class cpu_device final : public device_operations {
 public:
  cpu_device() { add_device(backend::cpu, this); }

  void amax(const place& at, const matrix_memory& in, float* out) const override {
    with_view(in, [&](auto view) { *out = ms::amax(cpu::executor(at), view); });
  }
  void hadamard(const place& at, const matrix_memory& in, const matrix_memory& out,
                const ms::hadamard_options& options) const override {
    with_view(in, [&](auto from) {
      with_view(out, [&](auto to) { ms::hadamard_into(cpu::executor(at), from, to, options); });
    });
  }
  void draw_signs(const place&, ms::random_key key, const std::uint64_t* stream_offset,
                  ms::hadamard_signs* out) const override {
    *out = ms::hadamard_signs::drawn({key.seed, key.stream + *stream_offset});
  }
  void multiply(const place&, const float* a, const float* b, float* out) const override {
    out[0] = ms::fp32::mul(*a, *b);
    out[1] = 0.0f;
  }
};

const cpu_device built;

}  // namespace
}  // namespace microscale_torch
