// A training step on the device: cuda_linear against the host's linear, quantized operands, references and products
// byte by byte, over steps that sample and steps that hold.
#include <algorithm>
#include <cmath>

#include <microscale/recipe/linear.cuh>
#include <microscale/recipe/recipes.hpp>

#include "tensor_test.cuh"

using namespace device_test;
namespace recipes = microscale::recipes;

namespace {

// Every second step samples.
struct ue5m3_often : recipes::ue5m3 {
  ms::periodic_scaling scaling{.period = 2};
};

struct shape {
  index_t tokens, in, out;
};

struct layer_data {
  std::vector<float> x, w, dy, y, dx, dw;
};

layer_data make_data(const shape& s, std::uint64_t seed) {
  const scheme_facts facts = facts_of<ms::ue5m3_fp4>("");
  layer_data d;
  fill(d.x, s.tokens, s.in, data_kind::wide, facts, seed, element_type::f32);
  fill(d.w, s.out, s.in, data_kind::normal, facts, seed + 1, element_type::f32);
  fill(d.dy, s.tokens, s.out, data_kind::ties, facts, seed + 2, element_type::f32);
  for (float& g : d.dy) g *= 0x1p-20f;
  d.y.resize(d.dy.size());
  d.dx.resize(d.x.size());
  d.dw.resize(d.w.size());
  return d;
}

bool same_floats(const std::vector<float>& a, const std::vector<float>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!same_float(a[i], b[i])) return false;
  }
  return a.size() == b.size();
}

template <class T>
std::vector<T> fetch(const T* from, std::size_t n) {
  std::vector<T> v(n);
  check(cudaMemcpy(v.data(), from, n * sizeof(T), cudaMemcpyDeviceToHost), "copy of an operand");
  return v;
}

template <class S>
void expect_same_operand(results& r, const ms::quantized<S>& host, const ms::device_memory::quantized_matrix<S>& device,
                         const std::string& what) {
  const auto v = device.view();
  bool same = v.rows == host.rows() && v.cols == host.cols();
  same = same && fetch(v.codes, host.codes().size()) == host.codes();
  same = same && fetch(v.scales, host.scales().size()) == host.scales();
  if constexpr (S::has_tensor_scale) same = same && float_bits(fetch(v.datum, 1)[0]) == float_bits(host.datum());
  r.expect(same && !host.codes().empty(), what);
  r.add_elements(host.codes().size());
}

template <class Recipe, class Accumulate>
void test_step(results& r, const char* name, const shape& s, ms::cuda_launch launch = {}) {
  const ms::layer_position position{.role = ms::layer_role::mlp_up, .index = 0, .count = 4, .layer = 5};
  ms::linear<Recipe, Accumulate> host(s.in, s.out, position);
  ms::cuda_linear<Recipe, Accumulate> device(s.in, s.out, position);
  device_array<ms::cuda_status> status(std::vector<ms::cuda_status>(1));
  const ms::cuda gpu{.status = status.data(), .launch = launch};
  for (std::int64_t step = 1; step <= 3; ++step) {
    const ms::training_step at{.step = step, .micro_batch = 1, .seed = 77};
    const bool measures = step == 3;
    host.collect_metrics(measures);
    device.collect_metrics(measures);
    layer_data d = make_data(s, static_cast<std::uint64_t>(100 * step));
    const auto m = [](auto& v, index_t rows, index_t cols) { return ms::matrix(v.data(), rows, cols); };
    host.forward(cores{}, at, m(d.x, s.tokens, s.in), m(d.w, s.out, s.in), m(d.y, s.tokens, s.out));
    host.backward(cores{}, at, m(d.dy, s.tokens, s.out), m(d.dx, s.tokens, s.in), m(d.dw, s.out, s.in));

    const device_array<float> x(d.x), w(d.w), dy(d.dy), y(d.y.size()), dx(d.dx.size()), dw(d.dw.size());
    device.forward(gpu, at, m(x, s.tokens, s.in), m(w, s.out, s.in), m(y, s.tokens, s.out));
    device.backward(gpu, at, m(dy, s.tokens, s.out), m(dx, s.tokens, s.in), m(dw, s.out, s.in));
    synchronize(name);
    const std::string where = std::string(name) + " step " + std::to_string(step) + ": ";
    r.expect(same_floats(d.y, y.host()), where + "Y");
    r.expect(same_floats(d.dx, dx.host()), where + "dX");
    r.expect(same_floats(d.dw, dw.host()), where + "dW");
    r.add_elements(d.y.size() + d.dx.size() + d.dw.size());
    r.expect(host.state() == device.state(), where + "references");
    r.expect(status.host()[0].ok(), where + "status");
    using ms::gemm_role;
    expect_same_operand(r, host.template left<gemm_role::fprop>(), device.template left<gemm_role::fprop>(),
                        where + "X in Fprop");
    expect_same_operand(r, host.template right<gemm_role::fprop>(), device.template right<gemm_role::fprop>(),
                        where + "W in Fprop");
    expect_same_operand(r, host.template left<gemm_role::dgrad>(), device.template left<gemm_role::dgrad>(),
                        where + "dY in Dgrad");
    expect_same_operand(r, host.template right<gemm_role::dgrad>(), device.template right<gemm_role::dgrad>(),
                        where + "W in Dgrad");
    expect_same_operand(r, host.template left<gemm_role::wgrad>(), device.template left<gemm_role::wgrad>(),
                        where + "dY in Wgrad");
    expect_same_operand(r, host.template right<gemm_role::wgrad>(), device.template right<gemm_role::wgrad>(),
                        where + "X in Wgrad");
    if (measures) {
      r.expect(host.metrics()->output_gradient.noise == device.metrics()->output_gradient.noise &&
                   host.metrics()->activation.signal == device.metrics()->activation.signal &&
                   host.metrics()->weight.blocks == device.metrics()->weight.blocks,
               where + "metrics");
    }
  }
  r.end_group(name);
}

// BF16 operands: products are exact, each of k additions errs by less than 2^-24 of the sum of magnitudes; the host's
// may be fused and in another order, so twice that lies between them.
void expect_close(results& r, const std::vector<float>& a, const std::vector<float>& b, double magnitude, index_t k,
                  const std::string& what) {
  const double bound = 2.0 * static_cast<double>(k) * 0x1p-24 * magnitude * static_cast<double>(k);
  bool close = true;
  for (std::size_t i = 0; i < a.size(); ++i) {
    close = close && std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i])) <= bound;
  }
  r.expect(close && a.size() == b.size(), what);
}

void test_high_precision(results& r) {
  const shape s{75, 100, 52};
  const ms::layer_position position{.role = ms::layer_role::mlp_up, .index = 3, .count = 4, .layer = 5};
  ms::linear<recipes::bf16, ms::exact_f32> host(s.in, s.out, position);
  ms::cuda_linear<recipes::bf16, ms::exact_f32> device(s.in, s.out, position);
  layer_data d = make_data(s, 9);
  for (auto* const v : {&d.x, &d.w, &d.dy}) {
    for (float& e : *v) e = std::isfinite(e) ? std::fmod(e, 4.0f) : 1.0f;  // a bound says nothing about NaN
  }
  const auto m = [](auto& v, index_t rows, index_t cols) { return ms::matrix(v.data(), rows, cols); };
  host.forward(cores{}, {}, m(d.x, s.tokens, s.in), m(d.w, s.out, s.in), m(d.y, s.tokens, s.out));
  host.backward(cores{}, {}, m(d.dy, s.tokens, s.out), m(d.dx, s.tokens, s.in), m(d.dw, s.out, s.in));
  const device_array<float> x(d.x), w(d.w), dy(d.dy), y(d.y.size()), dx(d.dx.size()), dw(d.dw.size());
  device.forward(ms::cuda{}, {}, m(x, s.tokens, s.in), m(w, s.out, s.in), m(y, s.tokens, s.out));
  device.backward(ms::cuda{}, {}, m(dy, s.tokens, s.out), m(dx, s.tokens, s.in), m(dw, s.out, s.in));
  synchronize("bf16");
  const auto largest = [](const std::vector<float>& v) {
    float top = 0.0f;
    for (const float e : v) top = std::max(top, std::fabs(e));
    return static_cast<double>(top) * 1.01;  // rounded to BF16
  };
  expect_close(r, d.y, y.host(), largest(d.x) * largest(d.w), s.in, "Y of BF16");
  expect_close(r, d.dx, dx.host(), largest(d.dy) * largest(d.w), s.out, "dX of BF16");
  expect_close(r, d.dw, dw.host(), largest(d.dy) * largest(d.x), s.tokens, "dW of BF16");
  r.expect(!same_floats(d.y, std::vector<float>(d.y.size())), "Y of BF16 is not zero");
  r.end_group("bf16");
}

// An infinity is refused where it is sampled, by the host, before anything is enqueued; the state stays.
void test_refusal(results& r) {
  const shape s{16, 32, 16};
  const ms::layer_position position{.role = ms::layer_role::mlp_up, .index = 0, .count = 4, .layer = 5};
  ms::cuda_linear<ue5m3_often, ms::exact_f32> layer(s.in, s.out, position);
  layer_data d = make_data(s, 4);
  d.w[7] = bits_float(0x7F800000u);
  const device_array<float> x(d.x), w(d.w), y(d.y.size());
  bool refused = false;
  try {
    layer.forward(ms::cuda{}, {}, ms::matrix(x.data(), s.tokens, s.in), ms::matrix(w.data(), s.out, s.in),
                  ms::matrix(y.data(), s.tokens, s.out));
  } catch (const ms::error&) {
    refused = true;
  }
  r.expect(refused, "an infinite weight is refused");
  r.expect(layer.state() == ms::linear_state{}, "and leaves the state as it was");
  r.end_group("refusal");
}

}  // namespace

int main() {
  need_gpu();
  results r;
  const shape tails{75, 100, 52}, whole{96, 128, 64};
  test_step<ue5m3_often, ms::blackwell_k64>(r, "ue5m3, blackwell_k64, tails", tails);
  test_step<ue5m3_often, ms::blackwell_k64>(r, "ue5m3, blackwell_k64", {256, 512, 384}, {.threads = 64});
  test_step<ue5m3_often, ms::exact_f32>(r, "ue5m3, exact_f32, tails", tails, {.max_blocks = 3});
  test_step<ue5m3_often, ms::exact_f32>(r, "ue5m3, exact_f32", {256, 512, 384});
  test_step<recipes::nvfp4, ms::f32_blocks>(r, "nvfp4, transform, current scaling", whole);
  test_step<recipes::quartet2, ms::f32_blocks>(r, "quartet2, drawn scales, decoded operands", whole);
  test_step<recipes::transposition_invariant, ms::f32_blocks>(r, "transposition_invariant, turned operands", tails);
  test_step<recipes::fusion, ms::f32_blocks>(r, "fusion, constant tensor scale", whole);
  test_high_precision(r);
  test_refusal(r);
  return r.finish();
}
