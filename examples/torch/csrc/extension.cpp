// The operators that torch sees, in namespace `microscale`. What they compute is the library's; here tensors become
// views, and devices become executors.
#include <torch/extension.h>
#include <torch/library.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <microscale/recipe/stream.hpp>

#include "linear.hpp"
#include "recipes.hpp"
#include "tensors.hpp"

namespace microscale_torch {

namespace {

using at::Tensor;

quantize_request request_of(const Tensor& x, bool columns, const std::string& rounding, std::int64_t seed,
                            std::int64_t stream, std::int64_t scale_stream, const std::optional<Tensor>& reference,
                            std::int64_t target) {
  quantize_request request;
  request.axis = columns ? ms::axis::col : ms::axis::row;
  request.rounding = rounding_named(rounding);
  request.key = {static_cast<std::uint64_t>(seed), static_cast<std::uint64_t>(stream)};
  request.scale_key = {static_cast<std::uint64_t>(seed), static_cast<std::uint64_t>(scale_stream)};
  if (reference) {
    TORCH_CHECK(reference->scalar_type() == at::kFloat && reference->numel() == 1, "reference: expected one float");
    expect_same_device("reference", *reference, x);
    request.reference = reference->const_data_ptr<float>();
  }
  request.target = as_int("target", target);
  return request;
}

std::tuple<Tensor, Tensor, Tensor> quantize(const Tensor& x, const std::string& scheme,
                                            const std::optional<Tensor>& reference, bool columns,
                                            const std::string& rounding, std::int64_t seed, std::int64_t stream,
                                            std::int64_t target, std::int64_t scale_stream) {
  const on_device guard(x);
  const packed p = quantize_packed(x.contiguous(), find_scheme(backend_of(x), scheme),
                                   request_of(x, columns, rounding, seed, stream, scale_stream, reference, target));
  return {p.codes, p.scales, p.datum};
}

Tensor dequantize(const Tensor& codes, const Tensor& scales, const Tensor& datum, const std::string& scheme,
                  std::int64_t depth, bool columns, at::ScalarType dtype) {
  const on_device guard(codes);
  const packed p{codes, scales, datum, codes.size(0), depth};
  return decode(p, find_scheme(backend_of(codes), scheme), columns ? ms::axis::col : ms::axis::row, dtype, nullptr);
}

Tensor fake_quantize(const Tensor& x, const std::string& scheme, const std::optional<Tensor>& reference, bool columns,
                     const std::string& rounding, std::int64_t seed, std::int64_t stream, std::int64_t target,
                     std::int64_t scale_stream) {
  const on_device guard(x);
  const Tensor in = x.contiguous();
  Tensor out = at::empty_like(in);
  fake_quantize_to(in, out, find_scheme(backend_of(x), scheme),
                   request_of(x, columns, rounding, seed, stream, scale_stream, reference, target), nullptr);
  return out;
}

Tensor gemm(const Tensor& a_codes, const Tensor& a_scales, const Tensor& a_datum, const std::string& a_scheme,
            const Tensor& b_codes, const Tensor& b_scales, const Tensor& b_datum, const std::string& b_scheme,
            std::int64_t depth, const std::string& accumulation) {
  const on_device guard(a_codes);
  const packed a{a_codes, a_scales, a_datum, a_codes.size(0), depth};
  const packed b{b_codes, b_scales, b_datum, b_codes.size(0), depth};
  return multiply_packed(a, a_scheme, b, b_scheme, accumulation, at::kFloat);
}

Tensor hadamard(const Tensor& x, std::int64_t size, bool columns, at::IntArrayRef signs) {
  const on_device guard(x);
  ms::hadamard_options options;
  options.size = as_int("Hadamard size", size);
  options.axis = columns ? ms::axis::col : ms::axis::row;
  TORCH_CHECK(signs.size() <= 4, "signs: expected at most four words of 64 bits");
  for (std::size_t i = 0; i < signs.size(); ++i) options.signs.word[i] = static_cast<std::uint64_t>(signs[i]);
  const Tensor in = x.contiguous();
  Tensor out = at::empty_like(in);
  transform_to(in, out, options);
  return out;
}

Tensor amax(const Tensor& x) {
  const on_device guard(x);
  const Tensor in = x.contiguous();
  Tensor out = at::empty({1}, x.options().dtype(at::kFloat));
  find_device(backend_of(x)).amax(place_of(x), memory_of(in), out.mutable_data_ptr<float>());
  return out;
}

// ---------------------------------------------------------------------------------------------------------------
// What Python asks about recipes.

namespace py = pybind11;

py::object describe(const gemm_description& g) {
  if (!g.is_quantized) return py::none();
  const auto side = [](const operand_description& d) {
    py::dict out;
    out["scheme"] = d.scheme;
    out["rounding"] = name_of(d.rounding);
    out["transform"] = d.transform_size;
    out["drawn_signs"] = d.transform_is_drawn;
    return out;
  };
  return py::make_tuple(side(g.left), side(g.right));
}

const char* name_of(scaling_kind kind) {
  switch (kind) {
    case scaling_kind::current:
      return "current";
    case scaling_kind::periodic:
      return "periodic";
    case scaling_kind::frozen:
      return "frozen";
    default:
      return "none";
  }
}

py::dict describe_recipe(const std::string& name) {
  const recipe_description& r = find_recipe(name);
  py::dict out;
  out["name"] = r.name;
  out["fprop"] = describe(r.fprop);
  out["dgrad"] = describe(r.dgrad);
  out["wgrad"] = describe(r.wgrad);
  out["scaling"] = name_of(r.scaling);
  out["period"] = r.period;
  out["first_step"] = r.first_step;
  out["takes_targets"] = r.takes_targets;
  out["backward_from_quantized"] = r.backward_from_quantized;
  out["alternative"] = r.alternative;
  return out;
}

bool high_precision(const std::string& name, int role, int index, int count) {
  return find_recipe(name).high_precision(static_cast<ms::layer_role>(role), index, count);
}

bool uses_alternative(const std::string& name, int role, int index, int count) {
  const recipe_description& r = find_recipe(name);
  return r.uses_alternative != nullptr && r.uses_alternative(static_cast<ms::layer_role>(role), index, count);
}

py::dict describe_scheme(const std::string& name) {
  const scheme_facts& f = find_scheme(backend::cpu, name).facts();
  py::dict out;
  out["element_bits"] = f.element_bits;
  out["scale_bytes"] = f.scale_bytes;
  out["block"] = py::make_tuple(f.block_rows, f.block_columns);
  out["has_tensor_scale"] = f.has_tensor_scale;
  return out;
}

}  // namespace

TORCH_LIBRARY(microscale, m) {
  m.def(
      "quantize(Tensor x, str scheme, Tensor? reference=None, *, bool columns=False, str rounding='nearest_even', "
      "int seed=0, int stream=0, int target=0, int scale_stream=0) -> (Tensor, Tensor, Tensor)");
  m.def(
      "dequantize(Tensor codes, Tensor scales, Tensor datum, str scheme, int depth, *, bool columns=False, "
      "ScalarType dtype=float) -> Tensor");
  m.def(
      "fake_quantize(Tensor x, str scheme, Tensor? reference=None, *, bool columns=False, "
      "str rounding='nearest_even', int seed=0, int stream=0, int target=0, int scale_stream=0) -> Tensor");
  m.def(
      "gemm(Tensor a_codes, Tensor a_scales, Tensor a_datum, str a_scheme, Tensor b_codes, Tensor b_scales, "
      "Tensor b_datum, str b_scheme, int depth, str accumulation='exact_f32') -> Tensor");
  m.def("hadamard(Tensor x, int size=16, *, bool columns=False, int[] signs=[]) -> Tensor");
  m.def("amax(Tensor x) -> Tensor");
  m.def(
      "linear_forward(Tensor x, Tensor weight, Tensor references, Tensor clock, str recipe, "
      "int seed, int layer, int[] targets, str accumulation, ScalarType dtype, bool needs_dx, bool needs_dw) "
      "-> (Tensor, Tensor[])");
  m.def(
      "linear_backward(Tensor dy, Tensor[] saved, Tensor references, str recipe, int seed, "
      "int layer, int[] targets, str accumulation, int in_features, ScalarType x_dtype, ScalarType weight_dtype, "
      "bool needs_dx, bool needs_dw) -> (Tensor, Tensor)");
}

#define MICROSCALE_TORCH_IMPLEMENT(m)        \
  m.impl("quantize", &quantize);             \
  m.impl("dequantize", &dequantize);         \
  m.impl("fake_quantize", &fake_quantize);   \
  m.impl("gemm", &gemm);                     \
  m.impl("hadamard", &hadamard);             \
  m.impl("amax", &amax);                     \
  m.impl("linear_forward", &linear_forward); \
  m.impl("linear_backward", &linear_backward)

TORCH_LIBRARY_IMPL(microscale, CPU, m) { MICROSCALE_TORCH_IMPLEMENT(m); }
TORCH_LIBRARY_IMPL(microscale, CUDA, m) { MICROSCALE_TORCH_IMPLEMENT(m); }

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("recipes", [] {
    std::vector<std::string> names;
    for (const recipe_description& r : all_recipes()) names.push_back(r.name);
    return names;
  });
  m.def("stream_offset", [](std::int64_t step, std::int32_t micro_batch) {
    return static_cast<std::int64_t>(ms::stream_offset({.step = step, .micro_batch = micro_batch}));
  });
  m.def("describe_recipe", &describe_recipe);
  m.def("describe_scheme", &describe_scheme);
  m.def("high_precision", &high_precision);
  m.def("uses_alternative", &uses_alternative);
  m.attr("has_cuda") = has_cuda();
}

}  // namespace microscale_torch
