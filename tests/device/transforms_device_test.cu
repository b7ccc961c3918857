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
    hadamard_amax_on_device<T>(in, c, options, out);
    synchronize("amax of a transform");
    float got = 0;
    check(cudaMemcpy(&got, out, sizeof got, cudaMemcpyDeviceToHost), "copy to the host");
    const float expected = ms::hadamard_amax(cores{}, ms::matrix(dense.data(), c.rows, c.cols), options);
    r.expect(float_bits(got) == float_bits(expected), std::string(name) + " size " + std::to_string(options.size) +
                                                          (options.axis == ms::axis::row ? " rows" : " columns") +
                                                          describe(c));
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
    hadamard_on_device<T, U>(in, out, c, options);
    synchronize("hadamard");
    r.expect(t.same_matrix(out_type, out, c.rows, c.cols, c.cols + c.in_gap, expected.data()),
             std::string(name) + " size " + std::to_string(options.size) + describe(c));
    r.add_elements(dense.size());
    if (std::is_same_v<T, U>) {  // in place; the gaps hold what they held
      std::uint8_t* const same = upload(t.memory(), dense, c, in_type);
      hadamard_on_device<T, U>(same, same, c, options);
      synchronize("hadamard");
      r.expect(t.same_matrix(out_type, same, c.rows, c.cols, c.cols + c.in_gap, expected.data()),
               std::string(name) + " in place, size " + std::to_string(options.size) + describe(c));
    }
  }
  r.end_group(name);
}

}  // namespace

int main(int argc, char** argv) {
  need_gpu();
  results r;
  quantize_tester t(r, effort_of(argc, argv));
  test_amax(t, r);
  test_hadamard_amax<float>(t, r, "amax of hadamard float", element_type::f32);
  test_hadamard_amax<bf16>(t, r, "amax of hadamard bf16", element_type::bf16);
  test_hadamard_amax<f16>(t, r, "amax of hadamard f16", element_type::f16);
  test_hadamard<float, float>(t, r, "hadamard float to float", element_type::f32, element_type::f32);
  test_hadamard<bf16, bf16>(t, r, "hadamard bf16 to bf16", element_type::bf16, element_type::bf16);
  test_hadamard<f16, f16>(t, r, "hadamard f16 to f16", element_type::f16, element_type::f16);
  test_hadamard<bf16, float>(t, r, "hadamard bf16 to float", element_type::bf16, element_type::f32);
  return r.finish();
}
