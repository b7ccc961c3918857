#include "linear.hpp"

#include <tuple>
#include <utility>

#include <microscale/recipe/stream.hpp>

#include "recipes.hpp"
#include "tensors.hpp"

namespace microscale_torch {

using at::Tensor;

namespace {

// One operand of a product: decoded for `vendor`, packed for the accumulations that have a definition.
struct prepared {
  decoded_operand decoded;
  packed codes;
  std::string scheme;
};

// The same quantized operand for the product that reduces over its other dimension. Its blocks are square.
prepared turned(const prepared& p, bool is_vendor);

const char* reduction_of(ms::gemm_role gemm) {
  switch (gemm) {
    case ms::gemm_role::fprop:
      return "input features";
    case ms::gemm_role::dgrad:
      return "output features";
    default:
      return "tokens";
  }
}

class layer_call {
 public:
  layer_call(const recipe_description& recipe, const Tensor& references, const Tensor& clock, std::int64_t seed,
             std::int64_t layer, at::IntArrayRef targets, const std::string& accumulation)
      : recipe_(recipe),
        references_(references),
        layer_(static_cast<std::uint32_t>(layer)),
        targets_(targets),
        accumulation_(accumulation),
        is_vendor_(accumulation == "vendor") {
    at_ = {0, 0, static_cast<std::uint64_t>(seed)};
    TORCH_CHECK(references.scalar_type() == at::kFloat && references.numel() == 3, "references: expected three floats");
    TORCH_CHECK(targets.size() == 3, "targets: expected three");
    TORCH_CHECK(clock.scalar_type() == at::kLong && clock.numel() == (clock.is_cuda() ? 1 : 2) &&
                    (clock.device().is_cpu() || clock.device() == references.device()),
                "clock: expected the step and the micro-batch as two integers on the CPU, or their stream offset where "
                "the references are");
    const std::int64_t* const at = clock.const_data_ptr<std::int64_t>();
    if (clock.is_cuda()) {
      stream_offset_ = reinterpret_cast<const std::uint64_t*>(at);
    } else {
      at_.step = at[0];
      at_.micro_batch = static_cast<std::int32_t>(at[1]);
    }
  }

  bool is_vendor() const { return is_vendor_; }

  // Transformed along the reduction dimension, then quantized along it.
  prepared prepare(const Tensor& x, const operand_description& d, ms::axis along, ms::operand_role operand,
                   ms::gemm_role gemm) const {
    const scheme_operations& scheme = find_scheme(backend_of(x), d.scheme);
    const quantize_request request = request_for(x, d, along, operand, gemm);
    prepared p;
    p.scheme = d.scheme;
    p.decoded.along = along;
    if (is_vendor_) {
      p.decoded.values = at::empty(x.sizes(), x.options().dtype(at::kBFloat16));
      fake_quantize_to(x, p.decoded.values, scheme, request, &p.decoded.multiplier);
      if (!scheme.facts().has_tensor_scale) p.decoded.multiplier = Tensor();
    } else {
      p.codes = quantize_packed(x, scheme, request);
    }
    return p;
  }

  // The same operand for two products: along the rows for the first, along the columns for the second.
  std::pair<prepared, prepared> prepare_both(const Tensor& m, const operand_description& first,
                                             const operand_description& second, ms::operand_role operand,
                                             ms::gemm_role first_gemm, ms::gemm_role second_gemm) const {
    using ms::axis;
    const bool at_once = is_vendor_ && first.scheme == second.scheme && first.transform_size == 1;
    if (!at_once) {
      return {prepare(m, first, axis::row, operand, first_gemm), prepare(m, second, axis::col, operand, second_gemm)};
    }
    const scheme_operations& scheme = find_scheme(backend_of(m), first.scheme);
    const auto operand_memory = [&] { return at::empty(m.sizes(), m.options().dtype(at::kBFloat16)); };
    prepared a, b;
    a.scheme = b.scheme = first.scheme;
    a.decoded = {operand_memory(), Tensor(), axis::row};
    b.decoded = {operand_memory(), Tensor(), axis::col};
    fake_quantize_both_to(
        m, a.decoded.values, b.decoded.values, scheme, request_for(m, first, axis::row, operand, first_gemm),
        request_for(m, second, axis::col, operand, second_gemm), &a.decoded.multiplier, &b.decoded.multiplier);
    if (!scheme.facts().has_tensor_scale) a.decoded.multiplier = b.decoded.multiplier = Tensor();
    return {a, b};
  }

  // An operand of Fprop and, where `second_gemm` wants it too, that of the product which reduces over the rows:
  // quantized once and turned, or of what Fprop made of it, where the recipe says so.
  std::pair<prepared, prepared> prepare_forward(const Tensor& m, const operand_description& first,
                                                const operand_description& second, bool turns, bool needs_second,
                                                ms::operand_role operand, ms::gemm_role second_gemm) const {
    using ms::axis, ms::gemm_role;
    if (!needs_second || turns) {
      const prepared p = prepare(m, first, axis::row, operand, gemm_role::fprop);
      return {p, needs_second ? turned(p, is_vendor_) : prepared{}};
    }
    if (!recipe_.backward_from_quantized) {
      return prepare_both(m, first, second, operand, gemm_role::fprop, second_gemm);
    }
    const scheme_operations& scheme = find_scheme(backend_of(m), first.scheme);
    prepared p;
    p.scheme = first.scheme;
    p.codes = quantize_packed(m, scheme, request_for(m, first, axis::row, operand, gemm_role::fprop));
    if (is_vendor_) p.decoded = decode_operand(p.codes, scheme);
    const Tensor values = decode(p.codes, scheme, axis::row, at::kFloat, nullptr);
    return {p, prepare(values, second, axis::col, operand, second_gemm)};
  }

  Tensor multiply(const prepared& a, const prepared& b, at::ScalarType dtype) const {
    return is_vendor_ ? multiply_decoded(a.decoded, b.decoded, dtype)
                      : multiply_packed(a.codes, a.scheme, b.codes, b.scheme, accumulation_, dtype);
  }

 private:
  quantize_request request_for(const Tensor& m, const operand_description& d, ms::axis along, ms::operand_role operand,
                               ms::gemm_role gemm) const {
    if (const auto length = m.size(along == ms::axis::row ? 1 : 0); length % d.transform_size != 0) {
      ms::detail::fail(reduction_of(gemm),
                       "a multiple of " + std::to_string(d.transform_size) + " under " + recipe_.name,
                       std::to_string(length));
    }
    // A number drawn by the host is an argument of kernels, which a graph would repeat.
    const bool draws = d.rounding != rounding_kind::nearest_even || d.transform_is_drawn;
    if (draws && stream_offset_ == nullptr && is_captured(references_)) {
      ms::detail::fail("CUDA graph", "products that draw nothing, or GraphedStep",
                       "recipe " + recipe_.name + ", whose draws each replay would repeat");
    }
    quantize_request request;
    request.axis = along;
    request.rounding = d.rounding;
    request.key = {at_.seed, ms::random_stream(at_, layer_, operand, gemm)};
    request.scale_key = {at_.seed, ms::random_stream(at_, layer_, operand, gemm, ms::draw_purpose::scales)};
    request.stream_offset = stream_offset_;
    if (d.transform_size > 1) {
      // Both operands of a product share their signs: those of X.
      const ms::random_key key{
          at_.seed, ms::random_stream(at_, layer_, ms::operand_role::activation, gemm, ms::draw_purpose::signs)};
      request.transform = {.size = d.transform_size};
      if (d.transform_is_drawn && stream_offset_ != nullptr) {
        request.transform->read_signs = drawn_signs(key, gemm);
      } else {
        request.transform->signs = d.signs(key);
      }
    }
    const auto which = static_cast<std::size_t>(operand);
    const bool holds = recipe_.scaling == scaling_kind::periodic || recipe_.scaling == scaling_kind::frozen;
    if (holds && d.reads_reference) request.reference = references_.const_data_ptr<float>() + which;
    if (recipe_.takes_targets) request.target = as_int("target", targets_[which]);
    return request;
  }

  // Those of a product, drawn once where the stream offset is, for both of its operands.
  const ms::hadamard_signs* drawn_signs(ms::random_key key, ms::gemm_role gemm) const {
    Tensor& signs = signs_[static_cast<std::size_t>(gemm)];
    const bool are_new = !signs.defined();
    if (are_new) {
      signs =
          at::empty({static_cast<std::int64_t>(sizeof(ms::hadamard_signs))}, references_.options().dtype(at::kByte));
    }
    auto* const out = static_cast<ms::hadamard_signs*>(signs.data_ptr());
    if (are_new) find_device(backend_of(signs)).draw_signs(place_of(signs), key, stream_offset_, out);
    return out;
  }

  const recipe_description& recipe_;
  const Tensor& references_;
  std::uint32_t layer_;
  at::IntArrayRef targets_;
  const std::string& accumulation_;
  bool is_vendor_;
  ms::training_step at_;  // without step and micro-batch where the offset has them
  const std::uint64_t* stream_offset_ = nullptr;
  mutable Tensor signs_[3];  // of each product's transforms, where the stream offset is
};

prepared turned(const prepared& p, bool is_vendor) {
  prepared out = p;
  out.decoded.along = p.decoded.along == ms::axis::row ? ms::axis::col : ms::axis::row;
  if (is_vendor) return out;
  const scheme_facts& facts = find_scheme(backend_of(p.codes.codes), p.scheme).facts();
  TORCH_CHECK(facts.element_bits == 4, "turning codes: expected four-bit elements");
  const Tensor nibbles = at::stack({p.codes.codes.bitwise_and(15), p.codes.codes.bitwise_right_shift(4)}, 2)
                             .flatten(1)
                             .slice(1, 0, p.codes.cols)
                             .t();
  const Tensor even = at::constant_pad_nd(nibbles, {0, p.codes.rows % 2});
  const Tensor pairs = even.contiguous().view({p.codes.cols, even.size(1) / 2, 2});
  out.codes.codes = pairs.select(2, 0).bitwise_or(pairs.select(2, 1).bitwise_left_shift(4)).contiguous();
  out.codes.scales = p.codes.scales.t().contiguous();
  out.codes.rows = p.codes.cols;
  out.codes.cols = p.codes.rows;
  return out;
}

// What of an operand is kept for the backward pass; an undefined tensor cannot be in a list.
void save(std::vector<Tensor>& out, const prepared& p, bool is_vendor) {
  const auto or_empty = [](const Tensor& t, const Tensor& like) {
    return t.defined() ? t : at::empty({0}, like.options().dtype(at::kFloat));
  };
  if (is_vendor) {
    out.push_back(p.decoded.values);
    out.push_back(or_empty(p.decoded.multiplier, p.decoded.values));
  } else {
    out.push_back(p.codes.codes);
    out.push_back(p.codes.scales);
    out.push_back(p.codes.datum);
  }
}

prepared restore(const std::vector<Tensor>& saved, std::size_t which, bool is_vendor, const std::string& scheme,
                 std::int64_t depth) {
  prepared p;
  p.scheme = scheme;
  p.decoded.along = ms::axis::col;
  const std::size_t at = which * (is_vendor ? 2 : 3);
  if (is_vendor) {
    p.decoded.values = saved[at];
    if (saved[at + 1].numel() > 0) p.decoded.multiplier = saved[at + 1];
  } else {
    p.codes = {saved[at], saved[at + 1], saved[at + 2], saved[at].size(0), depth};
  }
  return p;
}

void save_nothing(std::vector<Tensor>& out, const Tensor& like, bool is_vendor) {
  for (int i = 0; i < (is_vendor ? 2 : 3); ++i) out.push_back(at::empty({0}, like.options().dtype(at::kFloat)));
}

}  // namespace

std::tuple<Tensor, std::vector<Tensor>> linear_forward(const Tensor& x_in, const Tensor& weight_in,
                                                       const Tensor& references, const Tensor& clock,
                                                       const std::string& recipe_name, std::int64_t seed,
                                                       std::int64_t layer, at::IntArrayRef targets,
                                                       const std::string& accumulation, at::ScalarType dtype,
                                                       bool needs_dx, bool needs_dw) {
  const on_device guard(x_in);
  const recipe_description& recipe = find_recipe(recipe_name);
  const layer_call call(recipe, references, clock, seed, layer, targets, accumulation);
  expect_same_device("weight", weight_in, x_in);
  expect_same_device("references", references, x_in);
  const Tensor x = x_in.contiguous(), weight = weight_in.contiguous();
  if (x.dim() != 2 || weight.dim() != 2 || x.size(1) != weight.size(1)) {
    ms::detail::fail("X of a linear layer", "tokens x " + std::to_string(weight.size(-1)),
                     x.dim() == 2 ? ms::detail::shape_text(x.size(0), x.size(1)) : std::to_string(x.dim()) + " axes");
  }
  using ms::operand_role, ms::gemm_role;
  const bool is_vendor = call.is_vendor();
  const auto [px, x_columns] = call.prepare_forward(x, recipe.fprop.left, recipe.wgrad.right, recipe.turns_activation,
                                                    needs_dw, operand_role::activation, gemm_role::wgrad);
  const auto [pw, w_columns] = call.prepare_forward(weight, recipe.fprop.right, recipe.dgrad.right, recipe.turns_weight,
                                                    needs_dx, operand_role::weight, gemm_role::dgrad);
  Tensor y = call.multiply(px, pw, dtype);

  std::vector<Tensor> saved;
  if (needs_dw) {
    save(saved, x_columns, is_vendor);
  } else {
    save_nothing(saved, x, is_vendor);
  }
  if (needs_dx) {
    save(saved, w_columns, is_vendor);
  } else {
    save_nothing(saved, x, is_vendor);
  }
  saved.push_back(clock.clone());
  return {y, saved};
}

std::tuple<Tensor, Tensor> linear_backward(const Tensor& dy_in, const std::vector<Tensor>& saved,
                                           const Tensor& references, const std::string& recipe_name, std::int64_t seed,
                                           std::int64_t layer, at::IntArrayRef targets, const std::string& accumulation,
                                           std::int64_t in_features, at::ScalarType x_dtype,
                                           at::ScalarType weight_dtype, bool needs_dx, bool needs_dw) {
  const on_device guard(dy_in);
  const recipe_description& recipe = find_recipe(recipe_name);
  const layer_call call(recipe, references, saved.back(), seed, layer, targets, accumulation);
  const bool is_vendor = call.is_vendor();
  expect_same_device("references", references, dy_in);
  const Tensor dy = dy_in.contiguous();
  const auto tokens = dy.size(0), out_features = dy.size(1);
  using ms::axis, ms::operand_role, ms::gemm_role;
  Tensor dx = at::empty({0}, dy.options().dtype(x_dtype)), dw = at::empty({0}, dy.options().dtype(weight_dtype));
  prepared rows, columns;
  if (needs_dx && needs_dw && !recipe.turns_output_gradient) {
    std::tie(rows, columns) = call.prepare_both(dy, recipe.dgrad.left, recipe.wgrad.left, operand_role::output_gradient,
                                                gemm_role::dgrad, gemm_role::wgrad);
  } else {
    if (needs_dx || recipe.turns_output_gradient) {
      rows = call.prepare(dy, recipe.dgrad.left, axis::row, operand_role::output_gradient, gemm_role::dgrad);
    }
    if (needs_dw) {
      columns = recipe.turns_output_gradient
                    ? turned(rows, is_vendor)
                    : call.prepare(dy, recipe.wgrad.left, axis::col, operand_role::output_gradient, gemm_role::wgrad);
    }
  }
  if (needs_dx) {
    dx = call.multiply(rows, restore(saved, 1, is_vendor, recipe.dgrad.right.scheme, out_features), x_dtype);
  }
  if (needs_dw) {
    dw = call.multiply(columns, restore(saved, 0, is_vendor, recipe.wgrad.right.scheme, tokens), weight_dtype);
  }
  if (needs_dx && dx.size(1) != in_features) {
    ms::detail::fail("features of dX", std::to_string(in_features), std::to_string(dx.size(1)));
  }
  return {dx, dw};
}

}  // namespace microscale_torch
