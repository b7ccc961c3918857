// DLPack: tensors of other libraries as views, and matrices of this one for them.
// The structures restate the ABI of DLPack 1.1 (https://github.com/dmlc/dlpack, dlpack.h), so that no header of theirs
// is needed; a pointer to theirs is cast to ours.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>

#include "../number/value.hpp"
#include "../tensor/error.hpp"
#include "../tensor/view.hpp"

namespace microscale::interop::dlpack {

// DLDeviceType, as far as views can be made: memory that the host or CUDA reaches.
enum device_type : std::int32_t { device_cpu = 1, device_cuda = 2, device_cuda_host = 3, device_cuda_managed = 13 };

// DLDataTypeCode.
enum type_code : std::uint8_t {
  code_int = 0,
  code_uint = 1,
  code_float = 2,
  code_bfloat = 4,
  code_float8_e4m3fn = 10,
  code_float8_e5m2 = 12,
  code_float8_e8m0fnu = 14,
  code_float6_e2m3fn = 15,
  code_float6_e3m2fn = 16,
  code_float4_e2m1fn = 17,
};

// DLDevice.
struct device {
  std::int32_t type;
  std::int32_t id;
};
// DLDataType.
struct data_type {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};
// DLTensor. Strides count elements; null means row-major.
struct tensor {
  void* data;
  dlpack::device device;
  std::int32_t ndim;
  data_type dtype;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};
// DLManagedTensor, a capsule named "dltensor".
struct managed_tensor {
  tensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(managed_tensor*);
};
// DLPackVersion.
struct version {
  std::uint32_t major;
  std::uint32_t minor;
};
inline constexpr version this_version = {1, 1};
inline constexpr std::uint64_t flag_read_only = 1, flag_copied = 2, flag_subbyte_padded = 4;
// DLManagedTensorVersioned, a capsule named "dltensor_versioned".
struct managed_tensor_versioned {
  dlpack::version version;
  void* manager_ctx;
  void (*deleter)(managed_tensor_versioned*);
  std::uint64_t flags;
  tensor dl_tensor;
};

// The type that DLPack has for T: a float, value<F>, or for codes and scales the format itself.
template <class T>
struct type_of;
template <>
struct type_of<float> {
  static constexpr data_type value = {code_float, 32, 1};
};
template <>
struct type_of<microscale::value<f16>> {
  static constexpr data_type value = {code_float, 16, 1};
};
template <>
struct type_of<microscale::value<bf16>> {
  static constexpr data_type value = {code_bfloat, 16, 1};
};
template <>
struct type_of<e4m3> {
  static constexpr data_type value = {code_float8_e4m3fn, 8, 1};
};
template <>
struct type_of<e5m2> {
  static constexpr data_type value = {code_float8_e5m2, 8, 1};
};
template <>
struct type_of<e8m0> {
  static constexpr data_type value = {code_float8_e8m0fnu, 8, 1};
};
// UE4M3 is E4M3 whose sign bit is zero, and is handed on as such.
template <>
struct type_of<ue4m3> {
  static constexpr data_type value = {code_float8_e4m3fn, 8, 1};
};
template <>
struct type_of<std::uint8_t> {
  static constexpr data_type value = {code_uint, 8, 1};
};

namespace detail {

[[noreturn]] inline void refuse(const std::string& expected, const std::string& got) {
  microscale::detail::fail("DLPack tensor", expected, got);
}

inline std::string text_of(data_type t) {
  return "type code " + std::to_string(t.code) + ", " + std::to_string(t.bits) + " bits, " + std::to_string(t.lanes) +
         " lanes";
}

}  // namespace detail

// A tensor of theirs as a view of the same memory: rows and columns of the last dimension, or one row where it has one
// dimension. Throws ms::error for another type, for more than two dimensions, for columns that are not contiguous, rows
// that overlap or go backwards, memory of a device other than `where` (pinned and managed CUDA memory counts as both),
// or memory that is not aligned for T.
template <class T>
matrix_view<T> import_matrix(const tensor& t, device_type where = device_cpu) {
  const auto [code, bits, lanes] = type_of<std::remove_const_t<T>>::value;
  if (t.dtype.code != code || t.dtype.bits != bits || t.dtype.lanes != lanes) {
    detail::refuse(detail::text_of({code, bits, lanes}), detail::text_of(t.dtype));
  }
  const bool shared = t.device.type == device_cuda_host || t.device.type == device_cuda_managed;
  if (t.device.type != where && !(shared && (where == device_cpu || where == device_cuda))) {
    detail::refuse("memory of device type " + std::to_string(where), std::to_string(t.device.type));
  }
  if (t.ndim != 1 && t.ndim != 2) detail::refuse("one or two dimensions", std::to_string(t.ndim));
  const std::int64_t rows = t.ndim == 2 ? t.shape[0] : 1, cols = t.shape[t.ndim - 1];
  constexpr std::int64_t most = (std::numeric_limits<std::int64_t>::max)() / static_cast<std::int64_t>(2 * sizeof(T));
  if (rows < 0 || cols < 0 || (rows > 0 && cols > most / rows)) {
    detail::refuse("a shape that fits memory", microscale::detail::shape_text(rows, cols));
  }
  std::int64_t pitch = cols;
  if (t.strides != nullptr && rows > 0 && cols > 0) {
    if (cols > 1 && t.strides[t.ndim - 1] != 1) {
      detail::refuse("contiguous columns", "a stride of " + std::to_string(t.strides[t.ndim - 1]));
    }
    if (rows > 1) pitch = t.strides[0];
    if (rows > 1 && (pitch < cols || pitch > most / rows)) {
      detail::refuse("rows that do not overlap", "a stride of " + std::to_string(pitch));
    }
  }
  if (rows == 0 || cols == 0) return {nullptr, rows, cols, cols};
  if (t.data == nullptr) detail::refuse("memory", "a null pointer");
  auto* data = static_cast<std::uint8_t*>(t.data) + t.byte_offset;
  if (reinterpret_cast<std::uintptr_t>(data) % alignof(T) != 0)
    detail::refuse("memory aligned for its type", "an odd address");
  return {reinterpret_cast<T*>(data), rows, cols, pitch};
}

// The same for a managed tensor; T has to be const where the tensor is read-only. Throws ms::error for an ABI of
// another major version, of which only the version and the deleter may be used.
template <class T>
matrix_view<T> import_matrix(const managed_tensor_versioned& m, device_type where = device_cpu) {
  if (m.version.major != this_version.major) {
    detail::refuse("major version " + std::to_string(this_version.major), std::to_string(m.version.major));
  }
  if (!std::is_const_v<T> && (m.flags & flag_read_only) != 0)
    detail::refuse("memory that may be written", "read-only memory");
  return import_matrix<T>(m.dl_tensor, where);
}

namespace detail {

// What an exported tensor needs to live: its shape, and whatever owns the memory.
template <class Managed, class Owner>
struct exported {
  Managed managed;
  std::int64_t shape[2];
  std::int64_t strides[2];
  Owner owner;

  static void destroy(Managed* m) { delete static_cast<exported*>(m->manager_ctx); }
};

template <class Managed, class T, class Owner>
Managed* export_as(matrix_view<T> view, data_type type, Owner owner, dlpack::device where) {
  auto* out = new exported<Managed, Owner>{{}, {view.rows, view.cols}, {view.pitch, 1}, std::move(owner)};
  out->managed.manager_ctx = out;
  out->managed.deleter = &exported<Managed, Owner>::destroy;
  auto* data = const_cast<std::remove_const_t<T>*>(view.data);
  out->managed.dl_tensor = {data, where, 2, type, out->shape, out->strides, 0};
  return &out->managed;
}

}  // namespace detail

// A matrix for others, as a managed tensor that they end with its deleter; `owner` (a shared_ptr, a vector that was
// moved in) is destroyed then. Memory is shared, never copied. Const elements are marked read-only.
template <class T, class Owner>
managed_tensor_versioned* export_matrix(matrix_view<T> view, Owner owner, device where = {device_cpu, 0},
                                        data_type type = type_of<std::remove_const_t<T>>::value) {
  auto* m = detail::export_as<managed_tensor_versioned>(view, type, std::move(owner), where);
  m->version = this_version;
  m->flags = std::is_const_v<T> ? flag_read_only : 0;
  return m;
}
// For consumers from before DLPack 1.0, which cannot be told that memory is read-only: T is not const.
template <class T, class Owner>
requires(!std::is_const_v<T>) managed_tensor* export_matrix_unversioned(matrix_view<T> view, Owner owner,
                                                                        device where = {device_cpu, 0},
                                                                        data_type type = type_of<T>::value) {
  return detail::export_as<managed_tensor>(view, type, std::move(owner), where);
}

}  // namespace microscale::interop::dlpack
