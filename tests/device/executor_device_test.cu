// What ms::cuda promises beside its bits: streams, graphs, the status word, typed errors, the caller's error state,
// empty matrices, and codes that no launch geometry can change.
#include <microscale/microscale.cuh>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "device_test.cuh"

namespace {

namespace ms = microscale;
using namespace device_test;
using ms::index_t;

constexpr index_t rows = 70, cols = 200;

std::vector<float> ordinary_data(std::uint64_t seed, index_t count = rows * cols) {
  random_source r(seed);
  std::vector<float> x;
  for (index_t i = 0; i < count; ++i) x.push_back((r.uniform() - 0.5f) * std::ldexp(1.0f, r.below(6)));
  return x;
}

// A quantized matrix on the device, with what the host made of the same input to compare it with.
template <class S>
struct device_quantized {
  index_t rows, cols;
  ms::quantized_size<S> size;
  device_array<std::uint8_t> codes;
  device_array<typename S::scale::storage> scales;
  device_array<float> datum;

  device_quantized(index_t r, index_t c)
      : rows(r),
        cols(c),
        size(ms::size_of<S>(r, c)),
        codes(static_cast<std::size_t>(size.code_bytes)),
        scales(static_cast<std::size_t>(size.scales)),
        datum(1) {}
  ms::quantized_view<S> view() {
    return {codes.data(), scales.data(),   datum.data(),     rows,
            cols,         size.code_pitch, size.scale_pitch, ms::scale_layout::linear};
  }
  bool equals(const ms::quantized<S>& q) const {
    return codes.host() == q.codes() && scales.host() == q.scales() &&
           (!S::has_tensor_scale || float_bits(datum.host()[0]) == float_bits(q.datum()));
  }
};

// Rounded to nearest even, through quantize_with, which compiles one kernel where quantize_into compiles one a
// rounding.
template <class S, class R = ms::nearest_even>
ms::quantized<S> on_host(const std::vector<float>& x, const ms::quantize_options& options = {}, R rounding = {}) {
  const bool by_row = options.axis == ms::axis::row;
  ms::quantized<S> q(by_row ? rows : cols, by_row ? cols : rows);
  ms::quantize_with(ms::sequential{}, ms::matrix(x.data(), rows, cols), q.view(), rounding, options);
  return q;
}
template <class T, class S>
void quantize_nearest(const ms::cuda& executor, ms::matrix_view<T> in, ms::quantized_view<S> out,
                      const ms::quantize_options& options = {}, std::span<std::byte> workspace = {}) {
  ms::quantize_with(executor, in, out, ms::nearest_even{}, options, workspace);
}

struct stream {
  cudaStream_t handle = nullptr;
  stream() { check(cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking), "cudaStreamCreate"); }
  ~stream() { cudaStreamDestroy(handle); }
};

template <class F>
bool throws_error(F&& f) {
  try {
    f();
  } catch (const ms::cuda_error&) {
    return false;
  } catch (const ms::error&) {
    return true;
  }
  return false;
}

ms::cuda_status read_status(const device_array<ms::cuda_status>& s) {
  synchronize("status");
  return s.host()[0];
}

// ---------------------------------------------------------------------------------------------------------------

void test_empty(results& r) {
  device_array<float> some(16);
  device_array<float> datum(1);
  device_array<std::byte> workspace(4);
  const ms::cuda executor;
  for (const auto& [m, n] : {std::pair<index_t, index_t>{0, 0}, {0, 5}, {5, 0}}) {
    const ms::matrix_view<const float> in{nullptr, m, n, n};
    const ms::matrix_view<float> out{nullptr, m, n, n};
    for (const ms::axis along : {ms::axis::row, ms::axis::col}) {
      const bool by_row = along == ms::axis::row;
      const ms::quantized_view<ms::mxfp4> q{nullptr, nullptr, nullptr, by_row ? m : n, by_row ? n : m};
      quantize_nearest(executor, in, q, {.axis = along});
      ms::dequantize_into(executor, q, out, along);
      ms::fake_quantize_into<ms::nvfp4>(executor, in, out, {.axis = along});
      datum.assign({7.0f});
      const ms::quantized_view<ms::nvfp4> s{nullptr, nullptr, datum.data(), by_row ? m : n, by_row ? n : m};
      ms::quantize_into(executor, in, s, {.axis = along}, std::span<std::byte>(workspace.data(), 4));
      synchronize("empty");
      r.expect(float_bits(datum.host()[0]) == float_bits(0.0f), "datum of an empty matrix");
    }
    ms::amax_into(executor, in, some.data());
    ms::hadamard_into(executor, ms::matrix_view<const float>{nullptr, 0, 16, 16},
                      ms::matrix_view<float>{nullptr, 0, 16, 16});
    synchronize("empty");
    r.expect(some.host()[0] == 0.0f, "amax of nothing");
  }
  device_quantized<ms::mxfp4> a(3, 0), b(2, 0);
  device_array<float> c(6);
  ms::gemm_into(executor, a.view(), b.view(), ms::matrix(c.data(), 3, 2));
  synchronize("empty gemm");
  r.expect(c.host() == std::vector<float>(6, 0.0f), "a GEMM over nothing gives zeros");
  const ms::quantized_view<ms::mxfp4> none{nullptr, nullptr, nullptr, 0, 32};
  ms::gemm_into(executor, none, none, ms::matrix_view<float>{nullptr, 0, 0, 0});
  r.expect(cudaPeekAtLastError() == cudaSuccess, "no error after empty calls");
  r.end_group("empty matrices");
}

void test_errors(results& r) {
  const auto x = ordinary_data(1);
  device_array<float> in(x);
  device_quantized<ms::nvfp4> q(rows, cols);
  device_array<std::byte> workspace(4);
  const auto view = ms::matrix(static_cast<const float*>(in.data()), rows, cols);
  const std::span<std::byte> space(workspace.data(), 4);

  const auto codes_before = q.codes.host();
  r.expect(throws_error([&] { ms::quantize_into(ms::cuda{}, view, q.view()); }), "a missing workspace");
  r.expect(throws_error([&] { ms::quantize_into(ms::cuda{}, view, q.view(), {.axis = ms::axis::col}, space); }),
           "a wrong shape");
  r.expect(throws_error([&] { ms::quantize_into(ms::cuda{.launch = {.threads = 33}}, view, q.view(), {}, space); }),
           "33 threads");
  r.expect(throws_error([&] { ms::quantize_into(ms::cuda{}, view, q.view(), {.target = 77}, space); }),
           "a target that nvfp4 has not");
  r.expect(throws_error([&] { ms::hadamard_into(ms::cuda{}, view, ms::matrix(in.data(), rows, cols), {.size = 32}); }),
           "200 is no multiple of 32");
  synchronize("errors");
  r.expect(q.codes.host() == codes_before, "nothing is written by a call that throws");

  bool typed = false;
  try {
    ms::quantize_into(ms::cuda{.launch = {.threads = 1024}}, view, q.view(), {}, space);
  } catch (const ms::cuda_error& e) {
    typed = e.code() != cudaSuccess && std::strstr(e.what(), "microscale") != nullptr;
  }
  r.expect(typed, "a refused launch throws cuda_error");
  r.expect(cudaPeekAtLastError() == cudaSuccess, "a refused launch leaves no error behind");

  // An error that is pending from before stays the caller's to find.
  void* p = nullptr;
  const cudaError_t provoked = cudaMalloc(&p, std::size_t{1} << 60);
  r.expect(provoked != cudaSuccess && cudaPeekAtLastError() == provoked, "an error to begin with");
  ms::quantize_into(ms::cuda{}, view, q.view(), {}, space);
  r.expect(cudaPeekAtLastError() == provoked, "a pending error survives a call");
  r.expect(cudaGetLastError() == provoked, "and can be taken");
  synchronize("quantize");
  r.expect(q.equals(on_host<ms::nvfp4>(x)), "and the call worked");

  int before = -1, after = -2;
  check(cudaGetDevice(&before), "cudaGetDevice");
  ms::quantize_into(ms::cuda{}, view, q.view(), {}, space);
  check(cudaGetDevice(&after), "cudaGetDevice");
  r.expect(before == after, "the current device");
  synchronize("quantize");
  r.end_group("errors and the caller's state");
}

template <class S>
void test_reject(results& r, ms::axis along) {
  auto x = ordinary_data(2);
  x[37 * cols + 11] = bits_float(0x7FC00000u);
  x[37 * cols + 12] = -std::numeric_limits<float>::infinity();
  x[12 * cols + 199] = std::numeric_limits<float>::infinity();
  x[69 * cols + 0] = bits_float(0xFFFFFFFFu);
  const std::uint64_t lowest = 12 * cols + 199;
  device_array<float> in(x);
  device_array<float> reference(std::vector<float>{3.0f});
  device_array<ms::cuda_status> status(std::vector<ms::cuda_status>(1));
  const bool by_row = along == ms::axis::row;
  device_quantized<S> q(by_row ? rows : cols, by_row ? cols : rows);
  const auto view = ms::matrix(static_cast<const float*>(in.data()), rows, cols);
  quantize_nearest(ms::cuda{.status = status.data()}, view, q.view(), {.axis = along, .reference = reference.data()});
  const auto s = read_status(status);
  r.expect(s.nonfinite_input() && s.word == lowest, "the lowest position: " + std::to_string(s.word));
  using poisoning = ms::with_nonfinite<S, ms::nonfinite::poison>;
  const float host_reference = 3.0f;
  const auto expected = on_host<poisoning>(x, {.axis = along, .reference = &host_reference});
  r.expect(q.codes.host() == expected.codes() && q.scales.host() == expected.scales(), "poison is what is written");
  // Without a status word nobody is told, and the bytes are the same.
  device_quantized<S> again(q.rows, q.cols);
  quantize_nearest(ms::cuda{}, view, again.view(), {.axis = along, .reference = reference.data()});
  synchronize("reject");
  r.expect(again.codes.host() == expected.codes() && again.scales.host() == expected.scales(), "without a status word");
}

void test_status(results& r) {
  test_reject<ms::with_nonfinite<ms::nvfp4, ms::nonfinite::reject>>(r, ms::axis::row);
  test_reject<ms::with_nonfinite<ms::nvfp4, ms::nonfinite::reject>>(r, ms::axis::col);
  test_reject<ms::with_nonfinite<ms::ue5m3_fp4_2d, ms::nonfinite::reject>>(r, ms::axis::row);
  test_reject<ms::with_nonfinite<ms::ue5m3_fp4_b32_2d, ms::nonfinite::reject>>(r, ms::axis::col);

  const auto x = ordinary_data(3);
  device_array<float> in(x);
  const auto view = ms::matrix(static_cast<const float*>(in.data()), rows, cols);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -1.0f, std::numeric_limits<float>::infinity()}) {
    device_array<float> reference(std::vector<float>{bad});
    device_array<ms::cuda_status> status(std::vector<ms::cuda_status>(1));
    device_quantized<ms::ue5m3_fp4> q(rows, cols);
    quantize_nearest(ms::cuda{.status = status.data()}, view, q.view(), {.reference = reference.data()});
    r.expect(read_status(status).bad_reference(), "a bad reference is reported");
    r.expect(float_bits(reference.host()[0]) == float_bits(bad), "the held reference is left alone");
    r.expect(ms::fp32::is_nan(q.datum.host()[0]), "the datum is NaN");
    r.expect(q.scales.host() == std::vector<std::uint8_t>(q.scales.size(), ms::ue5m3_ieee::nan_code),
             "every scale is NaN");
    r.expect(q.codes.host() == std::vector<std::uint8_t>(q.codes.size(), 0x77), "every code is that of a NaN");
    if (ms::fp32::is_infinite(bad)) continue;  // nvfp4 takes it, as its owner does
    device_array<float> out(static_cast<std::size_t>(rows * cols));
    ms::fake_quantize_into<ms::nvfp4>(ms::cuda{}, view, ms::matrix(out.data(), rows, cols),
                                      {.reference = reference.data()});
    synchronize("bad reference");
    bool all_nan = true;
    for (const float y : out.host()) all_nan = all_nan && ms::fp32::is_nan(y);
    r.expect(all_nan, "fake quantization gives NaN");
  }
  r.end_group("status word");
}

// ---------------------------------------------------------------------------------------------------------------

struct node_counts {
  int kernels = 0, memsets = 0, others = 0;
};
node_counts count_nodes(cudaGraph_t graph) {
  std::size_t n = 0;
  check(cudaGraphGetNodes(graph, nullptr, &n), "cudaGraphGetNodes");
  std::vector<cudaGraphNode_t> nodes(n);
  check(cudaGraphGetNodes(graph, nodes.data(), &n), "cudaGraphGetNodes");
  node_counts c;
  for (const auto node : nodes) {
    cudaGraphNodeType type;
    check(cudaGraphNodeGetType(node, &type), "cudaGraphNodeGetType");
    ++(type == cudaGraphNodeTypeKernel ? c.kernels : type == cudaGraphNodeTypeMemset ? c.memsets : c.others);
  }
  return c;
}

template <class F>
cudaGraph_t capture(const stream& s, F&& f) {
  cudaGraph_t graph = nullptr;
  check(cudaStreamBeginCapture(s.handle, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
  f();
  check(cudaStreamEndCapture(s.handle, &graph), "cudaStreamEndCapture");
  return graph;
}

// Replays of a call under with_stream_offset<R>, its draws those of a counter of steps in device memory. `mode` has the
// mode whose streams are moved by its argument.
template <class S, class Mode>
void test_offset(results& r, const char* what, const Mode& mode) {
  const stream s;
  const auto x = ordinary_data(5);
  const float host_reference = ms::amax(ms::sequential{}, ms::matrix(x.data(), rows, cols));
  device_array<float> in(x), reference(std::vector<float>{host_reference});
  device_array<std::uint64_t> offset(1);
  device_quantized<S> q(rows, cols);
  const ms::cuda executor{.stream = s.handle};
  const auto view = ms::matrix(static_cast<const float*>(in.data()), rows, cols);
  using late = ms::with_stream_offset<decltype(mode(0))>;
  const auto enqueue = [&](const late& rounding) {
    ms::quantize_with(executor, view, q.view(), rounding, {.reference = reference.data()});
  };
  const cudaGraph_t graph = capture(s, [&] { enqueue({mode(0), offset.data()}); });
  cudaGraphExec_t run;
  check(cudaGraphInstantiate(&run, graph, 0), "cudaGraphInstantiate");
  std::pair<std::vector<std::uint8_t>, std::vector<std::uint8_t>> before;
  for (const std::uint64_t step : {std::uint64_t{0}, std::uint64_t{1} << 32, ~std::uint64_t{0}}) {
    offset.assign({step});
    check(cudaGraphLaunch(run, s.handle), "cudaGraphLaunch");
    check(cudaStreamSynchronize(s.handle), "replay");
    r.expect(q.equals(on_host<S>(x, {.reference = &host_reference}, mode(step))), std::string(what) + ", replayed");
    const std::pair now{q.codes.host(), q.scales.host()};
    r.expect(now != before, std::string(what) + ", replayed, draws anew");
    before = now;
  }
  r.expect(throws_error([&] { enqueue({mode(0), nullptr}); }), std::string(what) + ", an offset that is null");
  check(cudaGraphExecDestroy(run), "cudaGraphExecDestroy");
  check(cudaGraphDestroy(graph), "cudaGraphDestroy");
}

void test_graphs(results& r) {
  using S = ms::ue5m3_fp4;
  const stream s;
  auto x = ordinary_data(4);
  device_array<float> in(x), decoded(x.size()), reference(std::vector<float>{0.0f}),
      product(static_cast<std::size_t>(rows * rows));
  device_array<std::byte> workspace(4);
  device_quantized<S> q(rows, cols);
  const ms::cuda executor{.stream = s.handle};
  const auto view = ms::matrix(static_cast<const float*>(in.data()), rows, cols);

  // A step that samples the reference, one that holds it, and one with current scaling.
  const cudaGraph_t sample = capture(s, [&] {
    ms::amax_into(executor, view, reference.data());
    quantize_nearest(executor, view, q.view(), {.reference = reference.data()});
  });
  const cudaGraph_t hold = capture(s, [&] {
    quantize_nearest(executor, view, q.view(), {.reference = reference.data()});
    ms::dequantize_into(executor, q.view(), ms::matrix(decoded.data(), rows, cols));
    ms::gemm_into(executor, q.view(), q.view(), ms::matrix(product.data(), rows, rows));
  });
  const cudaGraph_t current =
      capture(s, [&] { quantize_nearest(executor, view, q.view(), {}, std::span<std::byte>(workspace.data(), 4)); });
  const auto sampled = count_nodes(sample), held = count_nodes(hold), own = count_nodes(current);
  r.expect(sampled.kernels == 2 && sampled.memsets == 1 && sampled.others == 0, "nodes of a sampling step");
  r.expect(held.kernels == 3 && held.memsets == 0 && held.others == 0, "a holding step launches no amax kernel");
  r.expect(own.kernels == 2 && own.memsets == 1 && own.others == 0, "nodes of current scaling");

  cudaGraphExec_t sample_run, hold_run, current_run;
  check(cudaGraphInstantiate(&sample_run, sample, 0), "cudaGraphInstantiate");
  check(cudaGraphInstantiate(&hold_run, hold, 0), "cudaGraphInstantiate");
  check(cudaGraphInstantiate(&current_run, current, 0), "cudaGraphInstantiate");
  check(cudaGraphLaunch(sample_run, s.handle), "cudaGraphLaunch");
  check(cudaStreamSynchronize(s.handle), "replay");
  const float held_reference = ms::amax(ms::sequential{}, ms::matrix(x.data(), rows, cols));
  r.expect(q.equals(on_host<S>(x)), "replay of the sampling step");
  for (std::uint64_t step = 0; step < 3; ++step) {
    x = ordinary_data(100 + step);
    in.assign(x);
    check(cudaGraphLaunch(hold_run, s.handle), "cudaGraphLaunch");
    check(cudaStreamSynchronize(s.handle), "replay");
    const auto expected = on_host<S>(x, {.reference = &held_reference});
    r.expect(q.equals(expected), "replay of the holding step");
    r.expect(decoded.host() == ms::dequantize(expected), "and of its dequantization");
    r.expect(product.host() == ms::gemm(expected, expected), "and of its GEMM");
    check(cudaGraphLaunch(current_run, s.handle), "cudaGraphLaunch");
    check(cudaStreamSynchronize(s.handle), "replay");
    r.expect(q.equals(on_host<S>(x)), "replay of current scaling");
  }
  for (const auto e : {sample_run, hold_run, current_run}) {
    check(cudaGraphExecDestroy(e), "cudaGraphExecDestroy");
  }
  for (const auto g : {sample, hold, current}) check(cudaGraphDestroy(g), "cudaGraphDestroy");
  test_offset<S>(r, "a drawing step", [](std::uint64_t by) { return ms::stochastic_midpoint8{7, 3 + by}; });
  test_offset<ms::nvfp4_ms_eden>(r, "a step that draws scales", [](std::uint64_t by) {
    return ms::with_scale_draws<>{.scales = {7, 3 + by}};
  });
  r.end_group("graphs");
}

// ---------------------------------------------------------------------------------------------------------------

// Rounds away from zero from a third of a step on: a mode that the library does not have.
struct away_from_a_third {
  static constexpr int random_bits = 0;
  MICROSCALE_HD static constexpr bool away(ms::remainder rest, bool, bool, std::uint32_t) noexcept {
    return rest.fraction > 0x5555555555555555u;
  }
};

void test_roundings(results& r) {
  const auto x = ordinary_data(5);
  device_array<float> in(x);
  device_array<std::byte> workspace(4);
  const auto view = ms::matrix(static_cast<const float*>(in.data()), rows, cols);
  const std::span<std::byte> space(workspace.data(), 4);
  const std::uint64_t seed = 0x1234567890ABCDEFu, stream = 0xFEDCBA0987654321u;
  const ms::any_rounding roundings[] = {ms::nearest_even{},
                                        ms::toward_zero{},
                                        ms::toward_positive{},
                                        ms::toward_negative{},
                                        ms::stochastic_midpoint8{seed, stream},
                                        ms::stochastic_midpoint16{seed, stream},
                                        ms::stochastic_midpoint32{seed, stream},
                                        ms::stochastic_floor8{seed, stream}};
  for (const auto& rounding : roundings) {
    for (const ms::axis along : {ms::axis::row, ms::axis::col}) {
      const bool by_row = along == ms::axis::row;
      const auto expected =
          ms::quantize<ms::nvfp4>(ms::matrix(x.data(), rows, cols), {.axis = along, .rounding = rounding});
      const auto fake =
          ms::fake_quantize<ms::nvfp4>(ms::matrix(x.data(), rows, cols), {.axis = along, .rounding = rounding});
      // Three launch geometries: many small thread blocks, one thread block for all, something between.
      for (const ms::cuda_launch launch :
           {ms::cuda_launch{32, 1u << 20}, ms::cuda_launch{256, 1}, ms::cuda_launch{128, 3}}) {
        device_quantized<ms::nvfp4> q(by_row ? rows : cols, by_row ? cols : rows);
        device_array<float> out(x.size());
        const ms::cuda executor{.launch = launch};
        ms::quantize_into(executor, view, q.view(), {.axis = along, .rounding = rounding}, space);
        ms::fake_quantize_into<ms::nvfp4>(executor, view, ms::matrix(out.data(), rows, cols),
                                          {.axis = along, .rounding = rounding}, space);
        synchronize("roundings");
        const std::string what = "rounding " + std::to_string(rounding.index());
        r.expect(q.equals(expected), what);
        r.expect(out.host() == fake, what + ", fake");
        r.add_elements(2 * x.size());
      }
    }
  }
  ms::quantized<ms::nvfp4> expected(rows, cols);
  ms::quantize_with(ms::sequential{}, ms::matrix(x.data(), rows, cols), expected.view(), away_from_a_third{});
  device_quantized<ms::nvfp4> q(rows, cols);
  ms::quantize_with(ms::cuda{}, view, q.view(), away_from_a_third{}, {}, space);
  synchronize("roundings");
  r.expect(q.equals(expected), "a rounding of the user's own");
  // In place.
  device_array<float> same(x);
  ms::fake_quantize_into<ms::nvfp4>(ms::cuda{}, ms::matrix(static_cast<const float*>(same.data()), rows, cols),
                                    ms::matrix(same.data(), rows, cols), {}, space);
  synchronize("in place");
  r.expect(same.host() == ms::fake_quantize<ms::nvfp4>(ms::matrix(x.data(), rows, cols)), "fake quantization in place");
  r.end_group("roundings, launch geometries");
}

void test_streams(results& r) {
  constexpr int count = 4;
  std::vector<std::unique_ptr<stream>> streams;
  std::vector<std::vector<float>> data;
  std::vector<std::unique_ptr<device_array<float>>> inputs;
  std::vector<std::unique_ptr<device_array<std::byte>>> spaces;
  std::vector<std::unique_ptr<device_quantized<ms::nvfp4>>> outputs;
  for (int i = 0; i < count; ++i) {
    streams.push_back(std::make_unique<stream>());
    data.push_back(ordinary_data(200 + static_cast<std::uint64_t>(i)));
    inputs.push_back(std::make_unique<device_array<float>>(data.back()));
    spaces.push_back(std::make_unique<device_array<std::byte>>(4));
    outputs.push_back(std::make_unique<device_quantized<ms::nvfp4>>(rows, cols));
  }
  synchronize("set-up");
  for (int i = 0; i < count; ++i) {
    const auto u = static_cast<std::size_t>(i);
    ms::quantize_into(ms::cuda{.stream = streams[u]->handle},
                      ms::matrix(static_cast<const float*>(inputs[u]->data()), rows, cols), outputs[u]->view(), {},
                      std::span<std::byte>(spaces[u]->data(), 4));
  }
  for (int i = 0; i < count; ++i) {
    const auto u = static_cast<std::size_t>(i);
    check(cudaStreamSynchronize(streams[u]->handle), "cudaStreamSynchronize");
    r.expect(outputs[u]->equals(on_host<ms::nvfp4>(data[u])), "stream " + std::to_string(i));
  }
  r.end_group("streams");
}

}  // namespace

int main() {
  need_gpu();
  results r;
  test_empty(r);
  test_errors(r);
  test_status(r);
  test_graphs(r);
  test_roundings(r);
  test_streams(r);
  return r.finish();
}
