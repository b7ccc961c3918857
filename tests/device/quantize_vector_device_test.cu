// The kernels of whole, aligned blocks (quantize_rows.cuh, quantize_square.cuh, quantize_both.cuh) on the GPU against
// the definition on the host: shapes that they take and some that they just do not, data that is made to hurt,
// references at both ends of binary32.
#include <microscale/cuda/hadamard_quantize.cuh>
#include <microscale/tensor/hadamard_quantize.hpp>
#include <microscale/tensor/quantized.hpp>

#include "tensor_test.cuh"

namespace {

using namespace device_test;

constexpr index_t widths[] = {32, 64, 96, 128, 160, 512, 1056, 2048};
constexpr index_t heights[] = {1, 2, 16, 17, 32, 48, 64, 128, 130};
constexpr float references[] = {1.0f,    6.0f,     0.0f,     0x1p-149f, 0x1.8p-126f, 0x1p-100f, 0x1p-60f,
                                2688.0f, 3.14159f, 0x1p100f, 0x1p122f,  0x1.8p124f,  0x1p127f,  0x1.fffffep127f};

// A case that the vector kernels take: rows and codes on 16 bytes, whole blocks, one tensor scale.
quantize_case aligned_case(random_source& r, int index, index_t large) {
  quantize_case c = {};
  c.rows = heights[r.below(sizeof heights / sizeof *heights)];
  c.cols = widths[r.below(sizeof widths / sizeof *widths)];
  if (index == 0 && large > 0) {
    c.rows = 16 * (1 + large / 16000);
    c.cols = 1024;
  }
  c.kind = static_cast<data_kind>(index % data_kinds);
  if (r.below(3) == 0) c.in_gap = 8 * r.below(5);
  if (r.below(3) == 0) c.code_gap = 16 * r.below(3);
  if (r.below(3) == 0) c.scale_gap = 8 * r.below(3);
  c.scale_lead = r.below(3);
  if (r.below(3) == 0) {  // without padding, so that no scale is left to clear
    c.layout = ms::scale_layout::tile_128x4;
    c.rows = 128 * (1 + r.below(2));
    c.cols = 128 * (1 + r.below(3));
  }
  c.own_reference = r.below(4) == 0;
  c.wants_amax = r.below(2) == 0;
  c.reference = references[r.below(sizeof references / sizeof *references)];
  if (c.kind == data_kind::tiny && r.below(2)) c.reference = 0x1p-130f;
  if (c.kind == data_kind::huge && r.below(2)) c.reference = 0x1p126f;
  c.seed = r.bits64();
  c.stream = r.bits64();
  static constexpr unsigned thread_counts[] = {256, 128, 64, 32}, block_counts[] = {1u << 20, 3, 1};
  c.launch = {thread_counts[r.below(4)], block_counts[index == 0 ? 0 : r.below(3)]};
  return c;
}

template <class S, class R, class T, bool Fake = false>
void test_form(quantize_tester& t, const char* name, int cases) {
  const scheme_facts f = facts_of<S>(name);
  tested_device_form form;
  form.in = form.fake_out = std::is_same_v<T, float>  ? element_type::f32
                            : std::is_same_v<T, bf16> ? element_type::bf16
                                                      : element_type::f16;
  form.quantize = &quantize_on_device<S, R, T>;
  if constexpr (Fake) form.fake = &fake_quantize_on_device<S, R, T, T>;
  random_source random(std::hash<std::string>{}(name) + sizeof(T) + R::random_bits);
  for (int i = 0; i < cases; ++i) {
    auto c = aligned_case(random, i, t.effort() == 0 ? 0 : index_t{400000} * t.effort());
    if (random.below(3) == 0) {  // the transpose of what is quantized along rows
      c.along = ms::axis::col;
      std::swap(c.rows, c.cols);
      c.in_gap = (8 - c.cols % 8) % 8;
    }
    t.run(f, R::random_bits > 0 ? "stochastic" : "nearest", &quantize_on_host<S, R>, &dequantize_on_host<S>, form, c);
  }
}

// What two calls on the host give, from one on the device: codes, scales and data, byte by byte.
template <class S>
struct both_outputs {
  ms::quantized<S> rows, cols;

  both_outputs(index_t r, index_t c) : rows(r, c), cols(c, r) {}
};
template <class S>
struct on_device {
  device_array<std::uint8_t> codes, scales;
  device_array<float> datum{1};
  ms::quantized_view<S> view;

  explicit on_device(ms::quantized<S>& like)
      : codes(like.codes().size()), scales(like.scales().size()), view(like.view()) {
    view.codes = codes.data();
    view.scales = scales.data();
    view.datum = datum.data();
  }
  bool equals(const ms::quantized<S>& q) const {
    return codes.host() == q.codes() && scales.host() == q.scales() &&
           (!S::has_tensor_scale || same_float(datum.host()[0], q.datum()));
  }
};

// A matrix of one kind of data on both sides.
template <class T>
struct two_sided {
  std::vector<float> dense;
  device_array<T> device;
  index_t rows, cols;

  two_sided(index_t r, index_t c, data_kind kind, const scheme_facts& f, std::uint64_t seed)
      : device(static_cast<std::size_t>(r * c)), rows(r), cols(c) {
    const element_type type = std::is_same_v<T, float> ? element_type::f32 : element_type::bf16;
    fill(dense, r, c, kind, f, seed, type);
    std::vector<T> elements(dense.size());
    write_elements(type, dense.data(), elements.data(), static_cast<index_t>(dense.size()));
    device.assign(elements);
  }
  auto host_view() const { return ms::matrix(dense.data(), rows, cols); }
  auto device_view() const { return ms::matrix(static_cast<const T*>(device.data()), rows, cols); }
};

template <class T>
bool same_elements(const std::vector<T>& got, const std::vector<float>& expected) {
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (!same_float(ms::to_float(got[i]), ms::to_float(ms::from_float<T>(expected[i])))) return false;
  }
  return true;
}

template <class R>
R draw_rounding(random_source& random) {
  if constexpr (ms::stochastic_mode<R>) {
    return {random.bits64(), random.bits64()};
  } else {
    return {};
  }
}

// The device's mode that draws as that one of the definition.
constexpr std::uint64_t stream_offset = 0xFEDCBA9876543210u;
template <class R>
R mode_on_device(const definition_of<R>& mode, [[maybe_unused]] const device_array<std::uint64_t>& offset) {
  if constexpr (reads_offset<R>) {
    return {{mode.seed, mode.stream - stream_offset}, offset.data()};
  } else {
    return mode;
  }
}

struct shape {
  index_t rows, cols;
};
constexpr shape both_shapes[] = {{64, 128}, {128, 256}, {32, 32}, {160, 96}, {16, 32}, {48, 80}, {7, 33}, {320, 1024}};

template <class S, class T, class R, bool Fake>
void test_both(results& r, const char* name) {
  const scheme_facts f = facts_of<S>(name);
  random_source random(std::hash<std::string>{}(name) + R::random_bits);
  for (int i = 0; i < 2 * data_kinds; ++i) {
    const shape size = both_shapes[i % 8];
    const two_sided<T> in(size.rows, size.cols, static_cast<data_kind>(i % data_kinds), f, random.bits64());
    const float reference = references[random.below(sizeof references / sizeof *references)];
    const device_array<float> device_reference(std::vector<float>{reference}), device_amax(2);
    const device_array<std::byte> workspace(4);
    const auto row_rounding = draw_rounding<definition_of<R>>(random),
               col_rounding = draw_rounding<definition_of<R>>(random);
    const device_array<std::uint64_t> offset(std::vector<std::uint64_t>{stream_offset});
    float amax[2] = {};
    ms::quantize_options row{.rounding = row_rounding}, col{.rounding = col_rounding};
    auto device_row = row, device_col = col;
    if (random.below(3) > 0) row.reference = &reference, device_row.reference = device_reference.data();
    if (random.below(3) > 0) col.reference = &reference, device_col.reference = device_reference.data();
    if (random.below(2)) row.amax = amax, device_row.amax = device_amax.data();
    if (random.below(2)) col.amax = amax + 1, device_col.amax = device_amax.data() + 1;
    const std::string what = std::string(name) + " both, case " + std::to_string(i);
    both_outputs<S> expected(size.rows, size.cols);
    on_device<S> rows(expected.rows), cols(expected.cols);
    try {
      ms::quantize_both_with(cores{}, in.host_view(), expected.rows.view(), expected.cols.view(), row_rounding,
                             col_rounding, row, col);
    } catch (const ms::error&) {
      continue;  // a reference that its owner refuses; the status word is tested elsewhere
    }
    const std::span<std::byte> space(workspace.data(), 4);
    ms::quantize_both_with(ms::cuda{}, in.device_view(), rows.view, cols.view, mode_on_device<R>(row_rounding, offset),
                           mode_on_device<R>(col_rounding, offset), device_row, device_col, space);
    synchronize(what.c_str());
    r.expect(rows.equals(expected.rows), what + ", rows");
    r.expect(cols.equals(expected.cols), what + ", columns");
    const auto got_amax = device_amax.host();
    r.expect(row.amax == nullptr || float_bits(got_amax[0]) == float_bits(amax[0]), what + ", amax of rows");
    r.expect(col.amax == nullptr || float_bits(got_amax[1]) == float_bits(amax[1]), what + ", amax of columns");
    r.add_elements(in.dense.size() * 2);

    if constexpr (Fake) {
      std::vector<float> faked_rows(in.dense.size()), faked_cols(in.dense.size());
      const device_array<T> device_rows(in.dense.size()), device_cols(in.dense.size());
      ms::fake_quantize_both_into<S>(cores{}, in.host_view(), ms::matrix(faked_rows.data(), size.rows, size.cols),
                                     ms::matrix(faked_cols.data(), size.rows, size.cols), row, col);
      ms::fake_quantize_both_into<S>(ms::cuda{}, in.device_view(), ms::matrix(device_rows.data(), size.rows, size.cols),
                                     ms::matrix(device_cols.data(), size.rows, size.cols), device_row, device_col,
                                     space);
      synchronize(what.c_str());
      r.expect(same_elements(device_rows.host(), faked_rows), what + ", fake rows");
      r.expect(same_elements(device_cols.host(), faked_cols), what + ", fake columns");
      r.add_elements(in.dense.size() * 2);
    }
  }
}

template <class S, class T, class R, bool Fake>
void test_transformed(results& r, const char* name) {
  const scheme_facts f = facts_of<S>(name);
  random_source random(std::hash<std::string>{}(name) + 1 + R::random_bits);
  for (int i = 0; i < 3 * data_kinds; ++i) {
    const index_t rows = 32 * (1 + random.below(5)), cols = 32 * (1 + random.below(9));
    const two_sided<T> in(rows, cols, static_cast<data_kind>(i % data_kinds), f, random.bits64());
    const float reference = references[random.below(sizeof references / sizeof *references)];
    const device_array<float> device_reference(std::vector<float>{reference}), device_amax(1);
    const auto rounding = draw_rounding<definition_of<R>>(random);
    const device_array<std::uint64_t> offset(std::vector<std::uint64_t>{stream_offset});
    float amax = 0;
    ms::quantize_options options{.axis = random.below(2) ? ms::axis::row : ms::axis::col, .rounding = rounding};
    auto device_options = options;
    if (random.below(3) > 0) options.reference = &reference, device_options.reference = device_reference.data();
    if (random.below(2)) options.amax = &amax, device_options.amax = device_amax.data();
    const ms::hadamard_options transform{.size = random.below(3) == 0 ? 32 : 16,
                                         .signs = ms::hadamard_signs::drawn({random.bits64(), 1})};
    const read_transform read(transform);
    const ms::hadamard_options& on_gpu = i % 2 == 0 ? transform : read.options();
    const bool by_row = options.axis == ms::axis::row, is_one_kernel = transform.size <= S::block::columns;
    ms::quantized<S> expected(by_row ? rows : cols, by_row ? cols : rows);
    on_device<S> got(expected);
    try {
      ms::hadamard_quantize_with(cores{}, in.host_view(), expected.view(), rounding, transform, options);
    } catch (const ms::error&) {
      continue;
    }
    const std::string what = std::string(name) + " transformed, case " + std::to_string(i);
    const auto mode = mode_on_device<R>(rounding, offset);
    const std::size_t bytes =
        ms::hadamard_quantize_workspace(ms::cuda{}, in.device_view(), got.view, mode, on_gpu, device_options);
    r.expect(bytes <= sizeof(float) || !is_one_kernel, what + " takes a matrix");
    const device_array<std::byte> workspace(bytes);
    ms::hadamard_quantize_with(ms::cuda{}, in.device_view(), got.view, mode, on_gpu, device_options,
                               std::span<std::byte>(workspace.data(), bytes));
    synchronize(what.c_str());
    r.expect(got.equals(expected), what);
    r.expect(options.amax == nullptr || float_bits(device_amax.host()[0]) == float_bits(amax), what + ", amax");
    r.add_elements(in.dense.size());

    if constexpr (Fake) {
      std::vector<float> faked(in.dense.size());
      const device_array<T> device_faked(in.dense.size());
      const auto out = ms::matrix(device_faked.data(), rows, cols);
      ms::hadamard_fake_quantize_into<S>(cores{}, in.host_view(), ms::matrix(faked.data(), rows, cols), transform,
                                         options);
      const std::size_t wanted =
          ms::hadamard_fake_quantize_workspace<S>(ms::cuda{}, in.device_view(), out, on_gpu, device_options);
      r.expect(wanted <= sizeof(float) || !is_one_kernel, what + ", fake, takes a matrix");
      const device_array<std::byte> room(wanted);
      ms::hadamard_fake_quantize_into<S>(ms::cuda{}, in.device_view(), out, on_gpu, device_options,
                                         std::span<std::byte>(room.data(), wanted));
      synchronize(what.c_str());
      r.expect(same_elements(device_faked.host(), faked), what + ", fake");
      r.expect(options.amax == nullptr || float_bits(device_amax.host()[0]) == float_bits(amax), what + ", fake, amax");
      r.add_elements(in.dense.size());
    }
  }
}

// Rows as they are, columns transformed.
template <class S, class T, class R>
void test_both_transformed(results& r, const char* name) {
  const scheme_facts f = facts_of<S>(name);
  random_source random(std::hash<std::string>{}(name) + 2 + R::random_bits);
  for (int i = 0; i < 2 * data_kinds; ++i) {
    const shape size = {ms::round_up(both_shapes[i % 8].rows, index_t{16}), both_shapes[i % 8].cols};
    const two_sided<T> in(size.rows, size.cols, static_cast<data_kind>(i % data_kinds), f, random.bits64());
    const float reference = references[random.below(sizeof references / sizeof *references)];
    const device_array<float> device_reference(std::vector<float>{reference}), device_amax(2);
    const auto row_rounding = draw_rounding<R>(random), col_rounding = draw_rounding<R>(random);
    const ms::hadamard_options transform{.size = size.rows % 32 == 0 && random.below(3) == 0 ? 32 : 16,
                                         .signs = ms::hadamard_signs::drawn({random.bits64(), 1})};
    float amax[2] = {};
    ms::quantize_options row{.rounding = row_rounding}, col{.rounding = col_rounding};
    auto device_row = row, device_col = col;
    if (random.below(2)) row.reference = &reference, device_row.reference = device_reference.data();
    if (random.below(2)) col.reference = &reference, device_col.reference = device_reference.data();
    if (random.below(2)) row.amax = amax, device_row.amax = device_amax.data();
    if (random.below(2)) col.amax = amax + 1, device_col.amax = device_amax.data() + 1;
    const read_transform read(transform);
    const ms::hadamard_options& on_gpu = i % 2 == 0 ? read.options() : transform;
    const std::string what = std::string(name) + " both transformed, case " + std::to_string(i);
    both_outputs<S> expected(size.rows, size.cols);
    on_device<S> rows(expected.rows), cols(expected.cols);
    try {
      ms::hadamard_quantize_both_with(cores{}, in.host_view(), expected.rows.view(), expected.cols.view(), row_rounding,
                                      col_rounding, transform, row, col);
    } catch (const ms::error&) {
      continue;
    }
    const std::size_t bytes = ms::hadamard_quantize_both_workspace(ms::cuda{}, in.device_view(), rows.view, cols.view,
                                                                   on_gpu, device_row, device_col);
    const device_array<std::byte> workspace(bytes);
    ms::hadamard_quantize_both_with(ms::cuda{}, in.device_view(), rows.view, cols.view, row_rounding, col_rounding,
                                    on_gpu, device_row, device_col, std::span<std::byte>(workspace.data(), bytes));
    synchronize(what.c_str());
    r.expect(rows.equals(expected.rows), what + ", rows");
    r.expect(cols.equals(expected.cols), what + ", columns");
    const auto got_amax = device_amax.host();
    r.expect(row.amax == nullptr || float_bits(got_amax[0]) == float_bits(amax[0]), what + ", amax of rows");
    r.expect(col.amax == nullptr || float_bits(got_amax[1]) == float_bits(amax[1]), what + ", amax of columns");

    std::vector<float> faked_rows(in.dense.size()), faked_cols(in.dense.size());
    const device_array<T> device_rows(in.dense.size()), device_cols(in.dense.size());
    const auto out_rows = ms::matrix(device_rows.data(), size.rows, size.cols);
    const auto out_cols = ms::matrix(device_cols.data(), size.rows, size.cols);
    ms::hadamard_fake_quantize_both_into<S>(cores{}, in.host_view(),
                                            ms::matrix(faked_rows.data(), size.rows, size.cols),
                                            ms::matrix(faked_cols.data(), size.rows, size.cols), transform, row, col);
    const std::size_t wanted = ms::hadamard_fake_quantize_both_workspace<S>(ms::cuda{}, in.device_view(), out_cols,
                                                                            on_gpu, device_row, device_col);
    const device_array<std::byte> room(wanted);
    ms::hadamard_fake_quantize_both_into<S>(ms::cuda{}, in.device_view(), out_rows, out_cols, on_gpu, device_row,
                                            device_col, std::span<std::byte>(room.data(), wanted));
    synchronize(what.c_str());
    r.expect(same_elements(device_rows.host(), faked_rows), what + ", fake rows");
    r.expect(same_elements(device_cols.host(), faked_cols), what + ", fake columns");
    r.add_elements(in.dense.size() * 4);
  }
}

template <class S>
void test_decode(quantize_tester& t, results& r, const char* name) {
  const scheme_facts f = facts_of<S>(name);
  random_source random(std::hash<std::string>{}(name));
  for (int i = 0; i < 8; ++i) test_dequantize_case<S>(t, r, f, aligned_case(random, i, 100000), random);
}

// Counts the numbers in the range of quick_reciprocal whose reciprocal is another one than the division gives.
__global__ void reciprocal_kernel(unsigned* wrong) {
  namespace device = ms::detail::device;
  const std::uint32_t stride = gridDim.x * blockDim.x;
  unsigned count = 0;
  for (std::uint32_t b = device::quick_reciprocal_from + blockIdx.x * blockDim.x + threadIdx.x;
       b < device::quick_reciprocal_to; b += stride) {
    const float a = ms::fp32::from_bits(b);
    count += ms::fp32::bits(device::quick_reciprocal(a)) != ms::fp32::bits(ms::fp32::div(1.0f, a)) ? 1 : 0;
  }
  if (count > 0) atomicAdd(wrong, count);
}
void test_reciprocal(results& r) {
  const device_array<unsigned> wrong(std::vector<unsigned>{0});
  reciprocal_kernel<<<2048, 256>>>(wrong.data());
  synchronize("reciprocals");
  const unsigned count = wrong.host()[0];
  r.expect(count == 0, "quick reciprocals: " + std::to_string(count) + " differ");
  r.add_elements(ms::detail::device::quick_reciprocal_to - ms::detail::device::quick_reciprocal_from);
  r.end_group("reciprocals");
}

}  // namespace

int main(int argc, char** argv) {
  need_gpu();
  results r;
  test_reciprocal(r);
  quantize_tester t(r, effort_of(argc, argv));
  const int cases = t.effort() == 0 ? 3 : 27;
  using near = ms::nearest_even;
  using draws = ms::stochastic_midpoint8;
  test_form<ms::ue5m3_fp4, near, bf16, true>(t, "ue5m3_fp4", cases);
  test_form<ms::ue5m3_fp4, near, float, true>(t, "ue5m3_fp4", cases);
  test_form<ms::ue5m3_fp4, near, f16>(t, "ue5m3_fp4", cases);
  test_form<ms::ue5m3_fp4, draws, bf16, true>(t, "ue5m3_fp4", cases);
  // A stream that the kernels read.
  using late = ms::with_stream_offset<draws>;
  test_form<ms::ue5m3_fp4, late, bf16, true>(t, "ue5m3_fp4", cases);
  test_both<ms::ue5m3_fp4, bf16, late, false>(r, "ue5m3_fp4");
  test_transformed<ms::ue5m3_fp4, bf16, late, false>(r, "ue5m3_fp4");
  test_form<ms::mxfp4, ms::with_stream_offset<ms::stochastic_floor8>, float>(t, "mxfp4", cases);
  r.end_group("streams that kernels read");
  test_form<ms::ue5m3_fp4_b32, near, bf16>(t, "ue5m3_fp4_b32", cases);
  test_form<ms::ue5m3_fp4_b32, draws, float>(t, "ue5m3_fp4_b32", cases);
  test_form<ms::ue5m3_fp4_2d, near, bf16, true>(t, "ue5m3_fp4_2d", cases);
  test_form<ms::ue5m3_fp4_b32_2d, near, float>(t, "ue5m3_fp4_b32_2d", cases);
  test_decode<ms::ue5m3_fp4>(t, r, "ue5m3_fp4");
  test_both<ms::ue5m3_fp4, bf16, near, true>(r, "ue5m3_fp4");
  test_both<ms::ue5m3_fp4, bf16, draws, false>(r, "ue5m3_fp4");
  test_transformed<ms::ue5m3_fp4, bf16, near, false>(r, "ue5m3_fp4");
  test_transformed<ms::ue5m3_fp4, float, near, true>(r, "ue5m3_fp4");
  test_transformed<ms::ue5m3_fp4, bf16, draws, false>(r, "ue5m3_fp4");
  test_transformed<ms::ue5m3_fp4_b32, bf16, near, false>(r, "ue5m3_fp4_b32");
  r.end_group("ue5m3_fp4");
  test_form<ms::nvfp4, near, bf16>(t, "nvfp4", cases);
  test_form<ms::nvfp4, draws, float>(t, "nvfp4", cases);
  test_form<ms::nvfp4_torchao, near, bf16>(t, "nvfp4_torchao", cases);
  test_form<ms::with_nonfinite<ms::nvfp4, ms::nonfinite::saturate>, near, bf16, true>(t, "nvfp4, saturate", cases);
  test_form<ms::with_nonfinite<ms::nvfp4_2d, ms::nonfinite::poison>, near, bf16>(t, "nvfp4_2d, poison", cases);
  test_form<ms::with_nonfinite<ms::nvfp4, ms::nonfinite::poison>, draws, bf16>(t, "nvfp4, poison", cases);
  test_form<ms::nvfp4, ms::stochastic_floor8, bf16, true>(t, "nvfp4, floor", cases);
  test_both<ms::nvfp4, bf16, ms::stochastic_floor8, true>(r, "nvfp4, floor");
  test_transformed<ms::nvfp4, float, ms::stochastic_floor8, false>(r, "nvfp4, floor");
  test_transformed<ms::nvfp4, bf16, ms::stochastic_floor8, true>(r, "nvfp4, floor");
  test_transformed<ms::nvfp4, bf16, near, true>(r, "nvfp4");
  test_both_transformed<ms::nvfp4, bf16, ms::stochastic_floor8>(r, "nvfp4, floor");
  test_both_transformed<ms::nvfp4, bf16, near>(r, "nvfp4");
  test_decode<ms::nvfp4>(t, r, "nvfp4");
  r.end_group("nvfp4");
  test_form<ms::mxfp4, near, bf16, true>(t, "mxfp4", cases);
  test_form<ms::mxfp4, draws, float>(t, "mxfp4", cases);
  test_form<ms::mxfp4_even, near, float>(t, "mxfp4_even", cases);
  test_form<ms::mxfp4_ceil_2d, near, bf16>(t, "mxfp4_ceil_2d", cases);
  test_decode<ms::mxfp4>(t, r, "mxfp4");
  test_decode<ms::mxfp8_e4m3>(t, r, "mxfp8_e4m3");
  test_transformed<ms::mxfp4, float, near, false>(r, "mxfp4");
  test_both<ms::mxfp4, float, near, false>(r, "mxfp4");
  r.end_group("mxfp4");
  return r.finish();
}
