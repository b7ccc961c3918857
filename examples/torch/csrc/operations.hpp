// What the extension asks of the library, with the types taken out: torch's tensors have a dtype and a scheme's name at
// run time, the library's templates know both when they are compiled. No torch header comes in here, so that nvcc need
// not read them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <microscale/tensor/hadamard.hpp>
#include <microscale/tensor/options.hpp>

namespace microscale_torch {

namespace ms = microscale;
using ms::index_t;

enum class element_type : std::uint8_t { f32, bf16 };
// with_scale_draws: elements to nearest, each block's scale stochastically.
enum class rounding_kind : std::uint8_t { nearest_even, stochastic_midpoint8, stochastic_floor8, with_scale_draws };
const char* name_of(rounding_kind);

// A contiguous row-major matrix.
struct matrix_memory {
  void* data = nullptr;
  element_type type = element_type::f32;
  index_t rows = 0;
  index_t cols = 0;
};

// A quantized matrix, rows x cols as stored, codes and scales packed tightly.
struct packed_memory {
  std::uint8_t* codes = nullptr;
  void* scales = nullptr;
  float* datum = nullptr;
  index_t rows = 0;
  index_t cols = 0;
};

// Where a call runs: threads of the host, or a stream of the current device.
struct place {
  int threads = 1;
  void* stream = nullptr;
};

struct quantize_request {
  ms::axis axis = ms::axis::row;
  // Before quantization, along the same axis; its own axis is not read.
  std::optional<ms::hadamard_options> transform = {};
  rounding_kind rounding = rounding_kind::nearest_even;
  ms::random_key key = {};
  ms::random_key scale_key = {};                 // of a rounding that draws for scales
  const std::uint64_t* stream_offset = nullptr;  // in device memory: added to the keys' streams when kernels run
  const float* reference = nullptr;              // null: the tensor's own amax
  int target = 0;
  std::span<std::byte> workspace = {};  // in device memory: as much as scheme_operations::workspace wants
};

struct scheme_facts {
  std::string name;
  int element_bits = 0;
  int scale_bytes = 0;
  int block_rows = 0;
  int block_columns = 0;
  bool has_tensor_scale = false;
};

class scheme_operations {
 public:
  virtual ~scheme_operations() = default;
  virtual const scheme_facts& facts() const = 0;
  // The bytes of device memory that a quantization, or a fake quantization, wants as its workspace.
  virtual std::size_t workspace(const matrix_memory&, const packed_memory&, const quantize_request&) const { return 0; }
  virtual std::size_t workspace(const matrix_memory&, const matrix_memory&, const quantize_request&) const { return 0; }
  virtual void quantize(const place&, const matrix_memory& in, const packed_memory& out,
                        const quantize_request&) const = 0;
  // Either the values, or, with a `multiplier`, element times block scale (rounded to the type of `out`); the product
  // of that with *multiplier, which is written, is the value. Likewise fake_quantize.
  virtual void dequantize(const place&, const packed_memory& in, const matrix_memory& out, ms::axis,
                          float* multiplier) const = 0;
  virtual void fake_quantize(const place&, const matrix_memory& in, const matrix_memory& out, const quantize_request&,
                             float* multiplier) const = 0;
  // Along the rows and along the columns, each with its multiplier, which may be the same memory where references and
  // targets are the same and there is no transform. The workspace is that of either call, or two floats.
  virtual void fake_quantize_both(const place& at, const matrix_memory& in, const matrix_memory& rows,
                                  const matrix_memory& cols, const quantize_request& row_request,
                                  const quantize_request& col_request, float* row_multiplier,
                                  float* col_multiplier) const {
    fake_quantize(at, in, rows, row_request, row_multiplier);
    fake_quantize(at, in, cols, col_request, col_multiplier);
  }
};

// What depends on no scheme.
class device_operations {
 public:
  virtual ~device_operations() = default;
  virtual void amax(const place&, const matrix_memory& in, float* out) const = 0;
  virtual void hadamard(const place&, const matrix_memory& in, const matrix_memory& out,
                        const ms::hadamard_options&) const = 0;
  // hadamard_signs::drawn of the key, its stream plus *stream_offset.
  virtual void draw_signs(const place&, ms::random_key, const std::uint64_t* stream_offset,
                          ms::hadamard_signs* out) const = 0;
  // out = {fl(a b), 0}: what a BLAS in device-pointer mode reads as its alpha and its beta.
  virtual void multiply(const place&, const float* a, const float* b, float* out) const = 0;
};

// C = alpha A B^T in FP32, by an accumulation that has a definition, and the bytes of workspace that it is fast with.
struct gemm_operations {
  std::size_t (*workspace)(const packed_memory& a, const packed_memory& b) = nullptr;
  void (*run)(const place&, const packed_memory& a, const packed_memory& b, float* c,
              std::span<std::byte> workspace) = nullptr;
};

enum class backend : std::uint8_t { cpu, cuda };

// The tables of what was built. Looking up what was not is a microscale::error that says so.
void add_scheme(backend, const scheme_operations*);
void add_device(backend, const device_operations*);
void add_gemm(backend, std::string_view a, std::string_view b, std::string_view accumulation, const gemm_operations&);
const scheme_operations& find_scheme(backend, std::string_view scheme);
const device_operations& find_device(backend);
const gemm_operations& find_gemm(backend, std::string_view a, std::string_view b, std::string_view accumulation);

}  // namespace microscale_torch
