// amax and the Hadamard transform on the GPU against the definition on the host: every size, axis and element type.
#include <microscale/cuda/amax.cuh>
#include <microscale/cuda/hadamard.cuh>
#include <microscale/cuda/hadamard_amax.cuh>
#include <microscale/tensor/hadamard_quantize.hpp>

#include "tensor_test.cuh"

namespace {

using namespace device_test;

const scheme_facts facts = facts_of<ms::nvfp4>("nvfp4");

template <class T>
void amax_on_device(const std::uint8_t* in, const quantize_case& c, float* out) {
  const auto* const data = reinterpret_cast<const T*>(in);
  ms::amax_into(ms::cuda{.launch = c.launch}, ms::matrix(data, c.rows, c.cols, c.cols + c.in_gap), out);
}

template <class T, class U>
void hadamard_on_device(const std::uint8_t* in, std::uint8_t* out, const quantize_case& c,
                        const ms::hadamard_options& options) {
  const index_t pitch = c.cols + c.in_gap;
  ms::hadamard_into(ms::cuda{.launch = c.launch}, ms::matrix(reinterpret_cast<const T*>(in), c.rows, c.cols, pitch),
                    ms::matrix(reinterpret_cast<U*>(out), c.rows, c.cols, pitch), options);
}

// Puts a dense matrix into device memory with the pitch and misalignment of the case.
std::uint8_t* upload(arena& memory, const std::vector<float>& dense, const quantize_case& c, element_type type) {
  const index_t element = device_test::size_of(type), pitch = c.cols + c.in_gap;
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(c.rows * pitch * element), 0xA5);
  for (index_t row = 0; row < c.rows; ++row) {
    write_elements(type, dense.data() + row * c.cols, bytes.data() + row * pitch * element, c.cols);
  }
  std::uint8_t* const p = memory.take(static_cast<index_t>(bytes.size()), c.in_lead * element);
  check(cudaMemcpy(p, bytes.data(), bytes.size(), cudaMemcpyHostToDevice), "copy to the device");
  return p;
}

void test_amax(quantize_tester& t, results& r) {
  random_source random(31);
  void (*const forms[3])(const std::uint8_t*, const quantize_case&, float*) = {
      &amax_on_device<float>, &amax_on_device<bf16>, &amax_on_device<f16>};
  std::vector<float> dense;
  for (int i = 0; i < 120; ++i) {
    const quantize_case c = random_case(random, i % 10, false, t.effort() == 0 ? 0 : 1000000);
    for (const element_type type : {element_type::f32, element_type::bf16, element_type::f16}) {
      fill(dense, c.rows, c.cols, c.kind, facts, c.seed, type);
      t.memory().reset();
      const std::uint8_t* const in = upload(t.memory(), dense, c, type);
      float* const out = reinterpret_cast<float*>(t.memory().take(sizeof(float)));
      forms[static_cast<int>(type)](in, c, out);
      synchronize("amax");
      float got = 0;
      check(cudaMemcpy(&got, out, sizeof got, cudaMemcpyDeviceToHost), "copy to the host");
      const float expected = ms::amax(cores{}, ms::matrix(dense.data(), c.rows, c.cols));
      r.expect(float_bits(got) == float_bits(expected), std::string("amax ") + name_of(type) + describe(c));
      r.add_elements(dense.size());
    }
  }
  r.end_group("amax");
}

std::string describe(const char* name, const ms::hadamard_options& options) {
  return std::string(name) + " size " + std::to_string(options.size) +
         (options.axis == ms::axis::row ? " rows" : " columns") + (options.read_signs != nullptr ? ", signs read" : "");
}

template <class T>
void hadamard_amax_on_device(const std::uint8_t* in, const quantize_case& c, const ms::hadamard_options& options,
                             float* out) {
  const auto* const data = reinterpret_cast<const T*>(in);
  ms::hadamard_amax_into(ms::cuda{.launch = c.launch}, ms::matrix(data, c.rows, c.cols, c.cols + c.in_gap), out,
                         options);
}

// Every size; of 16 and 32 two cases in three with rows on 16 bytes, so that all kernels have their turn.
template <class T>
void test_hadamard_amax(quantize_tester& t, results& r, const char* name, element_type type) {
  random_source random(91);
  std::vector<float> dense;
  for (int i = 0; i < 96; ++i) {
    quantize_case c = random_case(random, i % 12, false, t.effort() == 0 ? 0 : 1000000);
    c.kind = static_cast<data_kind>(i % data_kinds);
    const int power = random.below(12);
    ms::hadamard_options options;
    options.size = power < 8 ? 2 << power : power % 2 == 0 ? 16 : 32;
    options.axis = random.below(2) ? ms::axis::row : ms::axis::col;
    options.signs = ms::hadamard_signs::drawn({c.seed, c.stream});
    index_t& length = options.axis == ms::axis::row ? c.cols : c.rows;
    length = ms::round_up(length, index_t{options.size});
    if (i % 3 > 0) {
      c.in_lead = 0;
      c.cols = ms::round_up(c.cols, index_t{options.axis == ms::axis::row ? options.size : 2});
      c.in_gap = ms::round_up(c.cols + c.in_gap, index_t{8}) - c.cols;
    }
    fill(dense, c.rows, c.cols, c.kind, facts, c.seed, type);
    t.memory().reset();
    const std::uint8_t* const in = upload(t.memory(), dense, c, type);
    float* const out = reinterpret_cast<float*>(t.memory().take(sizeof(float)));
    const float expected = ms::hadamard_amax(cores{}, ms::matrix(dense.data(), c.rows, c.cols), options);
    const read_transform read(options);
    for (const ms::hadamard_options& given : {options, read.options()}) {
      hadamard_amax_on_device<T>(in, c, given, out);
      synchronize("amax of a transform");
      float got = 0;
      check(cudaMemcpy(&got, out, sizeof got, cudaMemcpyDeviceToHost), "copy to the host");
      r.expect(float_bits(got) == float_bits(expected), describe(name, given) + describe(c));
    }
    r.add_elements(dense.size());
  }
  r.end_group(name);
}

template <class T, class U>
void test_hadamard(quantize_tester& t, results& r, const char* name, element_type in_type, element_type out_type) {
  random_source random(77);
  std::vector<float> dense, expected;
  for (int i = 0; i < 96; ++i) {
    quantize_case c = random_case(random, i % 8, false, t.effort() == 0 ? 0 : 500000);
    ms::hadamard_options options;
    options.size = 2 << (i % 8);
    if (i >= 48) {  // the sizes that have kernels for aligned memory, which they take or just do not
      options.size = i % 2 == 0 ? 16 : 32;
      c.in_lead = 0;
      c.in_gap = i % 3 == 0 ? 0 : c.in_gap / 4 * 4;
      c.cols = ms::round_up(c.cols, index_t{2});
    }
    options.axis = i / 8 % 2 == 0 ? ms::axis::row : ms::axis::col;
    options.signs = i % 3 == 0   ? ms::hadamard_signs::none()
                    : i % 3 == 1 ? ms::hadamard_signs::transformer_engine()
                                 : ms::hadamard_signs::drawn({c.seed, c.stream});
    index_t& length = options.axis == ms::axis::row ? c.cols : c.rows;
    length = ms::round_up(length, index_t{options.size});
    fill(dense, c.rows, c.cols, c.kind, facts, c.seed, in_type);
    expected.resize(dense.size());
    ms::hadamard_into(cores{}, ms::matrix(dense.data(), c.rows, c.cols), ms::matrix(expected.data(), c.rows, c.cols),
                      options);
    t.memory().reset();
    const std::uint8_t* const in = upload(t.memory(), dense, c, in_type);
    std::uint8_t* const out = t.memory().take(c.rows * (c.cols + c.in_gap) * device_test::size_of(out_type),
                                              c.in_lead * device_test::size_of(out_type));
    const read_transform read(options);
    const auto run = [&](const std::uint8_t* from, std::uint8_t* to, const ms::hadamard_options& given) {
      hadamard_on_device<T, U>(from, to, c, given);
      synchronize("hadamard");
      r.expect(t.same_matrix(out_type, to, c.rows, c.cols, c.cols + c.in_gap, expected.data()),
               describe(name, given) + (from == to ? " in place" : "") + describe(c));
    };
    run(in, out, options);
    std::uint8_t* const other = t.memory().take(c.rows * (c.cols + c.in_gap) * device_test::size_of(out_type),
                                                c.in_lead * device_test::size_of(out_type));
    run(in, other, read.options());
    r.add_elements(dense.size());
    if (std::is_same_v<T, U>) {  // the gaps hold what they held
      std::uint8_t* const same = upload(t.memory(), dense, c, in_type);
      run(same, same, i % 2 == 0 ? options : read.options());
    }
  }
  r.end_group(name);
}

// Each replay of a graph draws the signs of the offset that is there then.
void test_replayed_transform(results& r, device_array<std::uint64_t>& offset) {
  constexpr index_t rows = 64, cols = 128;
  std::vector<float> x(rows * cols);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 37) - 11.0f;
  const device_array<float> in(x), out(x.size()), amax(1);
  const device_array<ms::hadamard_signs> signs(1);
  const auto from = ms::matrix(static_cast<const float*>(in.data()), rows, cols);
  for (const int size_of_run : {8, 16, 32, 128}) {
    const ms::hadamard_options transform{.size = size_of_run, .read_signs = signs.data()};
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    check(cudaStreamCreate(&stream), "cudaStreamCreate");
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    const ms::cuda executor{.stream = stream};
    ms::draw_signs_into(executor, {7, 3}, offset.data(), signs.data());
    ms::hadamard_into(executor, from, ms::matrix(out.data(), rows, cols), transform);
    ms::hadamard_amax_into(executor, from, amax.data(), transform);
    check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
    std::vector<float> before;
    for (const std::uint64_t step : {std::uint64_t{0}, std::uint64_t{1} << 32, ~std::uint64_t{0}}) {
      offset.assign({step});
      check(cudaGraphLaunch(executable, stream), "cudaGraphLaunch");
      check(cudaStreamSynchronize(stream), "replay");
      const ms::hadamard_options drawn{.size = size_of_run, .signs = ms::hadamard_signs::drawn({7, 3 + step})};
      std::vector<float> expected(x.size());
      ms::hadamard_into(cores{}, ms::matrix(x, rows, cols), ms::matrix(expected, rows, cols), drawn);
      r.expect(out.host() == expected && expected != before, "replay of a transform of " + std::to_string(size_of_run));
      r.expect(amax.host()[0] == ms::hadamard_amax(cores{}, ms::matrix(x, rows, cols), drawn), "and of its amax");
      before = expected;
    }
    check(cudaGraphExecDestroy(executable), "cudaGraphExecDestroy");
    check(cudaGraphDestroy(graph), "cudaGraphDestroy");
    check(cudaStreamDestroy(stream), "cudaStreamDestroy");
  }
}

void test_drawn_signs(results& r) {
  device_array<std::uint64_t> offset(1);
  const device_array<ms::hadamard_signs> out(1);
  const std::uint64_t numbers[] = {0, 1, 0xFFFFFFFFu, std::uint64_t{1} << 32, 0x0123456789ABCDEFu, ~std::uint64_t{0}};
  for (const std::uint64_t seed : numbers) {
    for (const std::uint64_t stream : numbers) {
      for (const std::uint64_t added : numbers) {
        offset.assign({added});
        ms::draw_signs_into(ms::cuda{}, {seed, stream}, offset.data(), out.data());
        synchronize("draw of signs");
        r.expect(out.host()[0] == ms::hadamard_signs::drawn({seed, stream + added}), "drawn signs");
      }
    }
  }
  test_replayed_transform(r, offset);
  const auto refused = [&](const std::uint64_t* from, ms::hadamard_signs* to, const char* text) {
    try {
      ms::draw_signs_into(ms::cuda{}, {}, from, to);
    } catch (const ms::error& e) {
      return std::string(e.what()).find(text) != std::string::npos;
    }
    return false;
  };
  r.expect(refused(nullptr, out.data(), "expected a stream offset in device memory, got a null pointer"), "no offset");
  r.expect(refused(offset.data(), nullptr, "expected memory for the result, got a null pointer"), "no result");
  r.end_group("drawn signs");
}

}  // namespace

int main(int argc, char** argv) {
  need_gpu();
  results r;
  quantize_tester t(r, effort_of(argc, argv));
  test_amax(t, r);
  test_drawn_signs(r);
  test_hadamard_amax<float>(t, r, "amax of hadamard float", element_type::f32);
  test_hadamard_amax<bf16>(t, r, "amax of hadamard bf16", element_type::bf16);
  test_hadamard_amax<f16>(t, r, "amax of hadamard f16", element_type::f16);
  test_hadamard<float, float>(t, r, "hadamard float to float", element_type::f32, element_type::f32);
  test_hadamard<bf16, bf16>(t, r, "hadamard bf16 to bf16", element_type::bf16, element_type::bf16);
  test_hadamard<f16, f16>(t, r, "hadamard f16 to f16", element_type::f16, element_type::f16);
  test_hadamard<bf16, float>(t, r, "hadamard bf16 to float", element_type::bf16, element_type::f32);
  return r.finish();
}
