// The harness of the whole-matrix tests: one random case after another (data, shape, pitches, misalignment, layout,
// reference), done by the definition on the host's cores and by ms::cuda, and compared byte by byte, gaps between rows
// included.
//
// What depends on a scheme, a rounding or an element type is behind function pointers, so that a program compiles
// little more than the kernels that it tests.
#pragma once

#include <algorithm>
#include <cmath>

#include <microscale/cuda/quantize.cuh>
#include <microscale/tensor/hadamard.hpp>
#include <microscale/tensor/quantize.hpp>

#include "device_test.cuh"

namespace device_test {

namespace ms = microscale;
using ms::index_t;

// The definition, block rows split over the cores.
struct cores {
  template <class F>
  void for_ranges(index_t count, index_t cost, F&& f) const {
    if (count * cost < 20000) {  // threads would take longer to start
      f(index_t{0}, count);
      return;
    }
    const index_t part = std::max(index_t{1}, count / 64);
    parallel_for((count + part - 1) / part, [&](index_t i) {
      ms::detail::in_default_environment([&] { f(i * part, std::min(count, (i + 1) * part)); });
    });
  }
};
// The same on one thread, for small work.
using one_core = ms::sequential;

// A transform whose signs kernels read in device memory.
class read_transform {
 public:
  explicit read_transform(const ms::hadamard_options& given)
      : signs_(std::vector<ms::hadamard_signs>{given.signs}), options_(given) {
    for (std::uint64_t& word : options_.signs.word) word = ~word;  // so that taking these instead shows
    options_.read_signs = signs_.data();
  }
  const ms::hadamard_options& options() const { return options_; }

 private:
  device_array<ms::hadamard_signs> signs_;
  ms::hadamard_options options_;
};

enum class element_type { f32, bf16, f16 };
inline const char* name_of(element_type t) {
  return t == element_type::f32 ? "float" : t == element_type::bf16 ? "bf16" : "f16";
}
inline index_t size_of(element_type t) { return t == element_type::f32 ? 4 : 2; }

// Numbers in memory as `type` has them, and back.
inline void write_elements(element_type type, const float* from, void* to, index_t n) {
  for (index_t i = 0; i < n; ++i) {
    if (type == element_type::f32) {
      static_cast<float*>(to)[i] = from[i];
    } else {
      static_cast<std::uint16_t*>(to)[i] = type == element_type::bf16
                                               ? ms::from_float<ms::value<ms::bf16>>(from[i]).code()
                                               : ms::from_float<ms::value<ms::f16>>(from[i]).code();
    }
  }
}
inline float read_element(element_type type, const void* from, index_t i) {
  if (type == element_type::f32) return static_cast<const float*>(from)[i];
  const std::uint16_t code = static_cast<const std::uint16_t*>(from)[i];
  return type == element_type::bf16 ? ms::bf16::decode(code) : ms::f16::decode(code);
}

// Device memory that all cases share; for the tools that watch every access, an allocation of its own for each array.
class arena {
 public:
  arena(std::size_t bytes, bool separate) : size_(bytes), separate_(separate) {
    if (!separate) check(cudaMalloc(&base_, bytes), "cudaMalloc");
  }
  ~arena() {
    reset();
    cudaFree(base_);
  }
  arena(const arena&) = delete;
  arena& operator=(const arena&) = delete;
  void reset() {
    used_ = 0;
    for (std::uint8_t* const p : own_) cudaFree(p);
    own_.clear();
  }
  // `bytes` bytes that begin `offset` bytes past a multiple of 256, filled with 0xA5.
  std::uint8_t* take(index_t bytes, index_t offset = 0) {
    std::uint8_t* p = nullptr;
    if (separate_) {
      check(cudaMalloc(&p, static_cast<std::size_t>(std::max(index_t{1}, bytes + offset))), "cudaMalloc");
      own_.push_back(p);
      p += offset;
    } else {
      p = base_ + used_ + offset;
      used_ += static_cast<std::size_t>(offset + bytes + 511) / 256 * 256;
      if (used_ > size_) {
        std::printf("FAILED: the arena is too small\n");
        std::exit(1);
      }
    }
    check(cudaMemset(p, 0xA5, static_cast<std::size_t>(bytes)), "cudaMemset");
    return p;
  }

 private:
  std::uint8_t* base_ = nullptr;
  std::size_t size_, used_ = 0;
  bool separate_;
  std::vector<std::uint8_t*> own_;
};

// A quantized matrix in raw memory.
struct raw_quantized {
  std::uint8_t* codes = nullptr;
  std::uint8_t* scales = nullptr;
  float* datum = nullptr;
  index_t rows = 0, cols = 0, code_pitch = 0, scale_pitch = 0;
  ms::scale_layout layout = ms::scale_layout::linear;
  ms::tensor_tile tile = {};
};
template <class S>
ms::quantized_view<S> view_of(const raw_quantized& q) {
  using storage = typename S::scale::storage;
  auto* const scales = reinterpret_cast<storage*>(q.scales);
  return {q.codes, scales, q.datum, q.rows, q.cols, q.code_pitch, q.scale_pitch, q.layout, q.tile};
}
// How many tensor scales it has.
inline index_t count_tiles(const raw_quantized& q) {
  const ms::quantized_view<ms::mxfp4> shape{.rows = q.rows, .cols = q.cols, .tile = q.tile};
  return shape.tile_rows() * shape.tile_cols();
}

struct scheme_facts {
  const char* name;
  int block_rows, block_cols, element_bits;
  index_t scale_bytes;
  bool has_tensor_scale;
  float element_top;
  // The values of the element format's codes and the midpoints between them, what ties are made of.
  std::vector<float> grid;
};
template <class S>
scheme_facts facts_of(const char* name) {
  using element = typename S::element;
  scheme_facts f{name,
                 S::block::rows,
                 S::block::columns,
                 element::bits,
                 sizeof(typename S::scale::storage),
                 S::has_tensor_scale,
                 element::largest(),
                 {}};
  if constexpr (element::bits <= 8) {
    std::vector<float> values;
    for (int c = 0; c < 1 << element::bits; ++c) {
      const float v = ms::fp32::abs(element::decode(static_cast<typename element::storage>(c)));
      if (ms::fp32::is_finite(v)) values.push_back(v);
    }
    std::sort(values.begin(), values.end());
    for (std::size_t i = 0; i < values.size(); ++i) {
      f.grid.push_back(values[i]);
      if (i > 0) f.grid.push_back((values[i - 1] + values[i]) / 2);
    }
  } else {
    f.grid = {0.0f, 1.0f, 1.5f};
  }
  return f;
}

// ---------------------------------------------------------------------------------------------------------------
// Data.

enum class data_kind { normal, ties, wide, tiny, huge, sparse, nonfinite, bits, mixed };
inline constexpr int data_kinds = 9;

// One block's worth of one kind, `amax` its size.
inline float draw_number(random_source& r, data_kind kind, float scale, const scheme_facts& f) {
  const float sign = r.below(2) ? 1.0f : -1.0f;
  switch (kind) {
    case data_kind::ties: {
      const float v = f.grid[static_cast<std::size_t>(r.below(static_cast<int>(f.grid.size())))] * scale * sign;
      const int nudge = r.below(8) - 3;
      return nudge >= -1 && nudge <= 1 ? bits_float(float_bits(v) + static_cast<std::uint32_t>(nudge)) : v;
    }
    case data_kind::wide:
      return sign * std::ldexp(1.0f + r.uniform(), r.below(60) - 40) * scale;
    case data_kind::tiny:
      return bits_float(r.bits() & 0x80FFFFFFu);
    case data_kind::huge:
      return bits_float((r.bits() & 0x80FFFFFFu) | 0x7E000000u);
    case data_kind::sparse:
      return r.below(4) ? sign * 0.0f : sign * r.uniform() * scale;
    case data_kind::bits: {
      const std::uint32_t b = r.bits();
      return (b & 0x7F800000u) == 0x7F800000u ? 1.0f : bits_float(b);
    }
    case data_kind::nonfinite: {
      const int which = r.below(200);
      if (which == 0) return bits_float(0x7FC00000u | (r.bits() & 0x80000FFFu));
      if (which == 1) return sign * bits_float(0x7F800000u);
      return sign * r.uniform() * scale;
    }
    default: {
      float sum = 0;
      for (int i = 0; i < 4; ++i) sum += r.uniform() - 0.5f;
      return sum * scale;
    }
  }
}

inline void fill(std::vector<float>& x, index_t rows, index_t cols, data_kind kind, const scheme_facts& f,
                 std::uint64_t seed, element_type type) {
  x.resize(static_cast<std::size_t>(rows * cols));
  constexpr index_t patch = 16;  // rows and columns that share a scale and, in mixed data, a kind
  const auto work = [&](index_t patch_row) {
    for (index_t c0 = 0; c0 < cols; c0 += patch) {
      random_source r(seed * 1000003 + static_cast<std::uint64_t>(patch_row * 65537 + c0));
      for (index_t row = patch_row * patch; row < std::min(rows, (patch_row + 1) * patch); ++row) {
        const data_kind k = kind == data_kind::mixed ? static_cast<data_kind>(r.below(data_kinds - 1)) : kind;
        // A scale with few bits makes exact ties; any other makes near ones.
        float scale = std::ldexp(1.0f + 0.125f * static_cast<float>(r.below(8)), r.below(16) - 8);
        if (r.below(4) == 0) scale *= 1.0f + r.uniform();
        if (kind == data_kind::mixed && r.below(8) == 0) scale *= 0x1p-30f;
        for (index_t c = c0; c < std::min(cols, c0 + patch); ++c) {
          float v = draw_number(r, k, scale, f);
          if (type != element_type::f32) {
            std::uint16_t code = 0;
            write_elements(type, &v, &code, 1);
            v = read_element(type, &code, 0);
          }
          x[static_cast<std::size_t>(row * cols + c)] = v;
        }
      }
    }
  };
  if (rows * cols < 20000) {
    for (index_t p = 0; p * patch < rows; ++p) work(p);
  } else {
    parallel_for((rows + patch - 1) / patch, work);
  }
}

// ---------------------------------------------------------------------------------------------------------------
// Cases.

struct quantize_case {
  index_t rows, cols;  // of the input
  ms::axis along;
  ms::scale_layout layout;
  index_t in_lead, in_gap, code_lead, code_gap, scale_lead, scale_gap;  // misalignment, and pitch beyond the width
  bool own_reference;
  bool wants_amax;
  float reference;
  int target;
  std::uint64_t seed, stream;
  data_kind kind;
  ms::tensor_tile tile;  // in blocks
  ms::cuda_launch launch;
};

inline std::string describe(const quantize_case& c) {
  char text[256];
  std::snprintf(
      text, sizeof text,
      " %lldx%lld axis %s tile %lldx%lld kind %d leads %lld %lld %lld gaps %lld %lld %lld ref %s%a target %d %s",
      static_cast<long long>(c.rows), static_cast<long long>(c.cols), c.along == ms::axis::row ? "row" : "col",
      static_cast<long long>(c.tile.rows), static_cast<long long>(c.tile.cols), static_cast<int>(c.kind),
      static_cast<long long>(c.in_lead), static_cast<long long>(c.code_lead), static_cast<long long>(c.scale_lead),
      static_cast<long long>(c.in_gap), static_cast<long long>(c.code_gap), static_cast<long long>(c.scale_gap),
      c.own_reference ? "own " : "", static_cast<double>(c.reference), c.target,
      c.layout == ms::scale_layout::linear ? "linear" : "tiled");
  return text;
}

inline quantize_case random_case(random_source& r, int index, bool target_is_free, index_t large) {
  static constexpr index_t odd_sizes[] = {1,  2,  3,  5,  7,  8,   15,  16,  17,  31, 32,
                                          33, 47, 48, 64, 65, 100, 127, 128, 129, 200};
  constexpr int count = sizeof odd_sizes / sizeof *odd_sizes;
  quantize_case c = {};
  c.rows = odd_sizes[r.below(count)];
  c.cols = odd_sizes[r.below(count)];
  if (index == 0 && large > 0) {  // one large, with tails on both sides
    c.rows = 1 + large / 1000 + r.below(40);
    c.cols = 980 + r.below(60);
  }
  c.layout = r.below(2) ? ms::scale_layout::linear : ms::scale_layout::tile_128x4;
  if (r.below(3) > 0) {  // otherwise as aligned and tight as can be
    c.in_lead = r.below(9);
    c.in_gap = r.below(9);
    c.code_lead = r.below(17);
    c.code_gap = r.below(17);
    c.scale_lead = r.below(5);
    c.scale_gap = r.below(5);
  } else if (r.below(2)) {  // rows of vectors, whatever the width
    c.in_gap = (16 - c.cols % 16) % 16;
    c.code_gap = 0;
  }
  c.own_reference = r.below(3) == 0;
  c.wants_amax = r.below(3) == 0;
  static constexpr float references[] = {1.0f,      6.0f,   0.0f,    2688.0f, 0x1.8p-20f, 0x1p100f, 0x1.fffffep127f,
                                         0x1p-140f, 448.0f, 3.14159f};
  c.reference = r.below(3) ? references[r.below(10)] : std::ldexp(1.0f + r.uniform(), r.below(40) - 20);
  c.target = target_is_free && r.below(3) == 0 ? 2048 : 0;
  c.seed = r.bits64();
  c.stream = r.bits64();
  c.kind = static_cast<data_kind>(r.below(data_kinds));
  if (r.below(3) == 0) c.tile = {r.below(4), r.below(4)};  // one tensor scale for up to 3 x 3 blocks, or for rows
  static constexpr unsigned thread_counts[] = {256, 128, 64, 32};
  static constexpr unsigned block_counts[] = {1u << 20, 1u << 20, 7, 1};
  c.launch = {thread_counts[r.below(4)], block_counts[r.below(index == 0 ? 3 : 4)]};
  return c;
}

struct quantize_call_arguments {
  const quantize_case* c;
  const void* in;  // host: dense floats; device: the element type, with its pitch
  index_t in_pitch;
  raw_quantized out;
  void* matrix_out;  // fake quantization: where to, with the pitch of the input
  const float* reference;
  float* amax;
  std::uint8_t* workspace;
  ms::cuda_status* status;
  const std::uint64_t* stream_offset;  // device: the seed of the case
};

template <class R>
inline constexpr bool draws_scales = false;
template <class Elements>
inline constexpr bool draws_scales<ms::with_scale_draws<Elements>> = true;

template <class R>
inline constexpr bool reads_offset = false;
template <class R>
inline constexpr bool reads_offset<ms::with_stream_offset<R>> = true;

// What the definition has for a mode of the device.
template <class R>
struct definition_mode {
  using type = R;
};
template <class R>
struct definition_mode<ms::with_stream_offset<R>> {
  using type = typename definition_mode<R>::type;
};
template <class Elements>
struct definition_mode<ms::with_scale_draws<Elements>> {
  using type = ms::with_scale_draws<typename definition_mode<Elements>::type>;
};
template <class R>
using definition_of = typename definition_mode<R>::type;

// The mode of a case: keys are those of the definition less `moved`, what an offset adds to their streams.
template <class R>
R make_rounding(const quantize_case& c, const std::uint64_t* stream_offset = nullptr, std::uint64_t moved = 0) {
  if constexpr (draws_scales<R>) {
    return R{make_rounding<decltype(R{}.elements)>(c, stream_offset, moved), {c.stream, c.seed - moved}};
  } else if constexpr (reads_offset<R>) {
    return R{make_rounding<decltype(R{}.mode)>(c, nullptr, c.seed), stream_offset};
  } else if constexpr (ms::stochastic_mode<R>) {
    return R{c.seed, c.stream - moved};
  } else {
    return R{};
  }
}
inline ms::quantize_options options_of(const quantize_call_arguments& a) {
  ms::quantize_options o;
  o.axis = a.c->along;
  o.reference = a.reference;
  o.target = a.c->target;
  o.amax = a.amax;
  return o;
}

// Returns whether the definition throws.
using host_quantize = bool (*)(const quantize_call_arguments&);
using host_dequantize = void (*)(const raw_quantized&, ms::axis, float* out);
using device_quantize = void (*)(const quantize_call_arguments&);
using device_dequantize = void (*)(const raw_quantized&, ms::axis, index_t rows, index_t cols, void* out, index_t pitch,
                                   ms::cuda_launch);

template <class S, class R>
bool quantize_on_host(const quantize_call_arguments& a) {
  try {
    ms::quantize_with(cores{}, ms::matrix(static_cast<const float*>(a.in), a.c->rows, a.c->cols), view_of<S>(a.out),
                      make_rounding<definition_of<R>>(*a.c), options_of(a));
    return false;
  } catch (const ms::error&) {
    return true;
  }
}
template <class S>
void dequantize_on_host(const raw_quantized& q, ms::axis along, float* out) {
  const bool by_row = along == ms::axis::row;
  ms::dequantize_into(cores{}, view_of<S>(q), ms::matrix(out, by_row ? q.rows : q.cols, by_row ? q.cols : q.rows),
                      along);
}
template <class S, class R, class T>
void quantize_on_device(const quantize_call_arguments& a) {
  const ms::cuda executor{.stream = nullptr, .status = a.status, .launch = a.c->launch};
  const auto options = options_of(a);
  const auto in = ms::matrix(static_cast<const T*>(a.in), a.c->rows, a.c->cols, a.in_pitch);
  const std::size_t bytes = ms::quantize_workspace(executor, in, view_of<S>(a.out), options);
  ms::quantize_with(executor, in, view_of<S>(a.out), make_rounding<R>(*a.c, a.stream_offset), options,
                    std::span<std::byte>(reinterpret_cast<std::byte*>(a.workspace), bytes));
}
template <class S, class R, class T, class U>
void fake_quantize_on_device(const quantize_call_arguments& a) {
  const ms::cuda executor{.stream = nullptr, .status = a.status, .launch = a.c->launch};
  const auto options = options_of(a);
  const auto in = ms::matrix(static_cast<const T*>(a.in), a.c->rows, a.c->cols, a.in_pitch);
  const auto out = ms::matrix(static_cast<U*>(a.matrix_out), a.c->rows, a.c->cols, a.in_pitch);
  const std::size_t bytes = ms::quantize_workspace<S>(executor, in, options);
  // One rounding, as fake_quantize_into would choose it, so that only its kernel is compiled.
  const auto call = ms::detail::device::begin_quantize<S, R, T>(
      executor, in, make_rounding<R>(*a.c, a.stream_offset), options,
      std::span<std::byte>(reinterpret_cast<std::byte*>(a.workspace), bytes));
  const ms::detail::device::decoded_sink<S, U> sink{ms::detail::device::as_stored(out, options.axis)};
  ms::detail::device::launch_quantize<R>(executor, "fake quantization", call, sink);
}
template <class S, class T>
void dequantize_on_device(const raw_quantized& q, ms::axis along, index_t rows, index_t cols, void* out, index_t pitch,
                          ms::cuda_launch launch) {
  ms::dequantize_into(ms::cuda{.launch = launch}, view_of<S>(q), ms::matrix(static_cast<T*>(out), rows, cols, pitch),
                      along);
}

// ---------------------------------------------------------------------------------------------------------------
// The comparison.

struct tested_device_form {
  element_type in;
  device_quantize quantize = nullptr;
  device_quantize fake = nullptr;
  element_type fake_out = element_type::f32;
};

class quantize_tester {
 public:
  quantize_tester(results& r, int effort) : results_(r), arena_(std::size_t{1} << 29, effort == 0), effort_(effort) {}

  // `cases` random cases of one scheme, rounding and input type; the first is large.
  void test(const scheme_facts& f, const char* rounding, host_quantize host, host_dequantize decode,
            const tested_device_form& form, int cases) {
    random_source random(std::hash<std::string>{}(std::string(f.name) + rounding + name_of(form.in)));
    const index_t large = effort_ == 0 ? 0 : index_t{400000} * effort_;
    for (int i = 0; i < cases; ++i) {
      auto c = random_case(random, i, f.has_tensor_scale && std::strncmp(f.name, "ue5m3_fp4", 9) == 0, large);
      for (const ms::axis along : {ms::axis::row, ms::axis::col}) {
        c.along = along;
        if (!f.has_tensor_scale) c.target = 0;
        if (!f.has_tensor_scale) c.tile = {};
        run(f, rounding, host, decode, form, c);
      }
    }
  }

  arena& memory() { return arena_; }
  int effort() const { return effort_; }

  // One case.
  void run(const scheme_facts& f, const char* rounding, host_quantize host, host_dequantize decode,
           const tested_device_form& form, const quantize_case& c) {
    const std::string what = std::string(f.name) + " " + rounding + " " + name_of(form.in) + describe(c);
    fill(dense_, c.rows, c.cols, c.kind, f, c.seed, form.in);
    const bool by_row = c.along == ms::axis::row;
    raw_quantized shape;
    shape.rows = by_row ? c.rows : c.cols;
    shape.cols = by_row ? c.cols : c.rows;
    shape.layout = c.layout;
    shape.tile = {c.tile.rows * f.block_rows, c.tile.cols * f.block_cols};
    const index_t tiles = count_tiles(shape);
    std::vector<float> references(static_cast<std::size_t>(tiles), c.reference);
    for (std::size_t i = 1; i < references.size(); ++i) references[i] *= static_cast<float>(1 + i % 5);
    const index_t grid_rows = ms::ceil_div(shape.rows, index_t{f.block_rows});
    const index_t grid_cols = ms::ceil_div(shape.cols, index_t{f.block_cols});
    shape.code_pitch = ms::packed_bytes(f.element_bits, shape.cols) + c.code_gap;
    shape.scale_pitch = grid_cols + c.scale_gap;
    const index_t code_bytes = shape.rows * shape.code_pitch;
    const index_t scale_count = c.layout == ms::scale_layout::linear ? grid_rows * shape.scale_pitch
                                                                     : ms::scale_count(c.layout, grid_rows, grid_cols);
    const index_t scale_bytes = scale_count * f.scale_bytes;

    // The definition.
    host_codes_.assign(static_cast<std::size_t>(code_bytes), 0xA5);
    host_scales_.assign(static_cast<std::size_t>(scale_bytes), 0xA5);
    std::vector<float> host_data(static_cast<std::size_t>(tiles), 1.0f);
    quantize_call_arguments h = {};
    h.c = &c;
    h.in = dense_.data();
    h.reference = c.own_reference ? nullptr : references.data();
    float host_amax = 0.0f;
    if (c.wants_amax) h.amax = &host_amax;
    h.out = shape;
    h.out.codes = host_codes_.data();
    h.out.scales = host_scales_.data();
    h.out.datum = host_data.data();
    const bool refused = host(h);

    // The device's input, once for all its calls.
    arena_.reset();
    const index_t element = size_of(form.in), in_pitch = c.cols + c.in_gap, in_bytes = c.rows * in_pitch * element;
    elements_.assign(static_cast<std::size_t>(in_bytes), 0x7F);
    for (index_t row = 0; row < c.rows; ++row) {
      write_elements(form.in, dense_.data() + row * c.cols, elements_.data() + row * in_pitch * element, c.cols);
    }
    quantize_call_arguments d = {};
    d.c = &c;
    std::uint8_t* const in = arena_.take(in_bytes, c.in_lead * element);
    check(cudaMemcpy(in, elements_.data(), elements_.size(), cudaMemcpyHostToDevice), "copy to the device");
    d.in = in;
    d.in_pitch = in_pitch;
    if (!c.own_reference) {
      float* const reference = reinterpret_cast<float*>(arena_.take(tiles * 4));
      check(cudaMemcpy(reference, references.data(), references.size() * sizeof(float), cudaMemcpyHostToDevice),
            "copy to the device");
      d.reference = reference;
    }
    d.workspace = arena_.take(tiles * 4);
    auto* const offset = reinterpret_cast<std::uint64_t*>(arena_.take(sizeof(std::uint64_t)));
    check(cudaMemcpy(offset, &c.seed, sizeof c.seed, cudaMemcpyHostToDevice), "copy to the device");
    d.stream_offset = offset;
    if (c.wants_amax) d.amax = reinterpret_cast<float*>(arena_.take(sizeof(float)));
    d.status = reinterpret_cast<ms::cuda_status*>(arena_.take(sizeof(ms::cuda_status)));
    check(cudaMemset(d.status, 0xFF, sizeof(ms::cuda_status)), "cudaMemset");
    d.out = shape;
    d.out.codes = arena_.take(code_bytes, c.code_lead);
    d.out.scales = arena_.take(scale_bytes, c.scale_lead * f.scale_bytes);
    d.out.datum = reinterpret_cast<float*>(arena_.take(tiles * 4));

    if (form.quantize != nullptr) {
      form.quantize(d);
      synchronize(what.c_str());
      ms::cuda_status status;
      check(cudaMemcpy(&status, d.status, sizeof status, cudaMemcpyDeviceToHost), "copy to the host");
      results_.expect(refused != status.ok(), what + (refused ? ": not refused" : ": refused"));
      if (!refused) {
        const bool codes = same_bytes(d.out.codes, host_codes_), scales = same_bytes(d.out.scales, host_scales_);
        std::vector<float> data(host_data.size());
        check(cudaMemcpy(data.data(), d.out.datum, data.size() * sizeof(float), cudaMemcpyDeviceToHost), "copy");
        bool same_data = true;
        for (std::size_t i = 0; i < data.size(); ++i) same_data = same_data && same_float(data[i], host_data[i]);
        results_.expect(codes, what + ": codes");
        results_.expect(scales, what + ": scales");
        if (f.has_tensor_scale) results_.expect(same_data, what + ": datum");
        if (c.wants_amax) results_.expect(has_amax(d.amax, host_amax), what + ": amax");
        results_.add_elements(static_cast<std::uint64_t>(c.rows * c.cols));
      }
    }
    if (form.fake != nullptr && !refused && shape.tile == ms::tensor_tile{}) {
      decoded_.resize(dense_.size());
      decode(h.out, c.along, decoded_.data());
      const index_t out_element = size_of(form.fake_out), out_bytes = c.rows * in_pitch * out_element;
      std::uint8_t* const out = arena_.take(out_bytes, c.in_lead * out_element);
      d.matrix_out = out;
      if (c.wants_amax) check(cudaMemset(d.amax, 0xA5, sizeof(float)), "cudaMemset");
      form.fake(d);
      synchronize(what.c_str());
      results_.expect(same_matrix(form.fake_out, out, c.rows, c.cols, in_pitch, decoded_.data()),
                      what + ": fake quantization");
      if (c.wants_amax) results_.expect(has_amax(d.amax, host_amax), what + ": amax of fake quantization");
      results_.add_elements(static_cast<std::uint64_t>(c.rows * c.cols));
    }
  }

  bool has_amax(const float* device, float host) {
    float got = 0.0f;
    check(cudaMemcpy(&got, device, sizeof got, cudaMemcpyDeviceToHost), "copy to the host");
    return float_bits(got) == float_bits(host);
  }
  bool same_bytes(const std::uint8_t* device, const std::vector<std::uint8_t>& host) {
    back_.resize(host.size());
    check(cudaMemcpy(back_.data(), device, host.size(), cudaMemcpyDeviceToHost), "copy to the host");
    return std::memcmp(back_.data(), host.data(), host.size()) == 0;
  }
  // A matrix of `type` against dense floats, rounded to that type; the gaps between rows must hold what they held.
  bool same_matrix(element_type type, const std::uint8_t* device, index_t rows, index_t cols, index_t pitch,
                   const float* expected) {
    const index_t element = size_of(type);
    back_.resize(static_cast<std::size_t>(rows * pitch * element));
    check(cudaMemcpy(back_.data(), device, back_.size(), cudaMemcpyDeviceToHost), "copy to the host");
    std::atomic<bool> same{true};
    const auto row_is_same = [&](index_t r) {
      for (index_t c = 0; c < pitch; ++c) {
        const std::uint8_t* const at = back_.data() + (r * pitch + c) * element;
        if (c >= cols) {
          for (index_t b = 0; b < element; ++b) same = same && at[b] == 0xA5;
          continue;
        }
        std::uint8_t wanted[4];
        write_elements(type, expected + r * cols + c, wanted, 1);
        if (std::memcmp(at, wanted, static_cast<std::size_t>(element)) != 0 &&
            !(ms::fp32::is_nan(read_element(type, at, 0)) && ms::fp32::is_nan(read_element(type, wanted, 0)))) {
          same = false;
        }
      }
    };
    if (rows * cols < 20000) {
      for (index_t r = 0; r < rows; ++r) row_is_same(r);
    } else {
      parallel_for(rows, row_is_same);
    }
    return same;
  }

 private:
  results& results_;
  arena arena_;
  int effort_;
  std::vector<float> dense_, decoded_;
  std::vector<std::uint8_t> host_codes_, host_scales_, elements_, back_;
};

// ---------------------------------------------------------------------------------------------------------------
// Which kernels a program compiles. MICROSCALE_TEST_EVERYTHING asks for every scheme under every rounding from and to
// every element type, which takes long to compile; without it, every scheme meets a deterministic and a stochastic
// rounding, and some schemes meet all of them.

#if defined(MICROSCALE_TEST_EVERYTHING)
inline constexpr bool everything = true;
#else
inline constexpr bool everything = false;
#endif

using bf16 = ms::value<ms::bf16>;
using f16 = ms::value<ms::f16>;

// One rounding of a scheme over the given input types; `Fake` says whether fake quantization goes along.
template <class S, class R, bool Fake, class... T>
void test_rounding(quantize_tester& t, const scheme_facts& f, const char* rounding) {
  const auto one = [&]<class In>(In) {
    tested_device_form form;
    form.in = form.fake_out = std::is_same_v<In, float>  ? element_type::f32
                              : std::is_same_v<In, bf16> ? element_type::bf16
                                                         : element_type::f16;
    form.quantize = &quantize_on_device<S, R, In>;
    if constexpr (Fake) form.fake = &fake_quantize_on_device<S, R, In, In>;
    t.test(f, rounding, &quantize_on_host<S, R>, &dequantize_on_host<S>, form, 8);
  };
  (one(T{}), ...);
}

// Decoding of arbitrary codes and scales in the shapes of a case, to every element type.
template <class S>
void test_dequantize_case(quantize_tester& t, results& results, const scheme_facts& f, const quantize_case& c,
                          random_source& r) {
  static constexpr device_dequantize forms[3] = {&dequantize_on_device<S, float>, &dequantize_on_device<S, bf16>,
                                                 &dequantize_on_device<S, f16>};
  raw_quantized q;
  q.rows = c.rows;
  q.cols = c.cols;
  q.layout = c.layout;
  if (f.has_tensor_scale) q.tile = {c.tile.rows * f.block_rows, c.tile.cols * f.block_cols};
  const index_t tiles = count_tiles(q);
  const index_t grid_rows = ms::ceil_div(q.rows, index_t{f.block_rows});
  const index_t grid_cols = ms::ceil_div(q.cols, index_t{f.block_cols});
  q.code_pitch = ms::packed_bytes(f.element_bits, q.cols) + c.code_gap;
  q.scale_pitch = grid_cols + c.scale_gap;
  const index_t scales = c.layout == ms::scale_layout::linear ? grid_rows * q.scale_pitch
                                                              : ms::scale_count(c.layout, grid_rows, grid_cols);
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(q.rows * q.code_pitch));
  std::vector<std::uint8_t> scale_bytes(static_cast<std::size_t>(scales * f.scale_bytes));
  for (auto& b : codes) b = static_cast<std::uint8_t>(r.bits());
  for (auto& b : scale_bytes) b = static_cast<std::uint8_t>(r.bits());
  std::vector<float> data(static_cast<std::size_t>(tiles), c.reference);
  for (std::size_t j = 1; j < data.size(); ++j) data[j] *= static_cast<float>(1 + j % 5);
  raw_quantized host = q, device = q;
  host.codes = codes.data();
  host.scales = scale_bytes.data();
  host.datum = data.data();
  t.memory().reset();
  device.codes = t.memory().take(static_cast<index_t>(codes.size()), c.code_lead);
  device.scales = t.memory().take(static_cast<index_t>(scale_bytes.size()), c.scale_lead * f.scale_bytes);
  device.datum = reinterpret_cast<float*>(t.memory().take(tiles * 4));
  check(cudaMemcpy(device.codes, codes.data(), codes.size(), cudaMemcpyHostToDevice), "copy to the device");
  check(cudaMemcpy(device.scales, scale_bytes.data(), scale_bytes.size(), cudaMemcpyHostToDevice), "copy");
  check(cudaMemcpy(device.datum, data.data(), data.size() * sizeof(float), cudaMemcpyHostToDevice), "copy");
  std::vector<float> expected(static_cast<std::size_t>(c.rows * c.cols));
  for (const ms::axis along : {ms::axis::row, ms::axis::col}) {
    const index_t rows = along == ms::axis::row ? q.rows : q.cols, cols = along == ms::axis::row ? q.cols : q.rows;
    dequantize_on_host<S>(host, along, expected.data());
    for (const element_type type : {element_type::f32, element_type::bf16, element_type::f16}) {
      const index_t pitch = cols + c.in_gap;
      std::uint8_t* const out = t.memory().take(rows * pitch * size_of(type), c.in_lead * size_of(type));
      forms[static_cast<int>(type)](device, along, rows, cols, out, pitch, c.launch);
      synchronize(f.name);
      results.expect(t.same_matrix(type, out, rows, cols, pitch, expected.data()),
                     std::string(f.name) + " dequantize to " + name_of(type) + describe(c));
      results.add_elements(static_cast<std::uint64_t>(rows * cols));
    }
  }
}

template <class S>
void test_dequantize(quantize_tester& t, results& results, const scheme_facts& f) {
  random_source r(std::hash<std::string>{}(f.name));
  for (int i = 0; i < 12; ++i) {
    test_dequantize_case<S>(t, results, f, random_case(r, i, false, t.effort() == 0 ? 0 : 200000), r);
  }
}

template <class S, bool EveryRounding = everything>
void test_scheme(quantize_tester& t, results& r, const char* name) {
  const scheme_facts f = facts_of<S>(name);
  if constexpr (everything) {
    test_rounding<S, ms::nearest_even, true, float, bf16, f16>(t, f, "nearest_even");
    test_rounding<S, ms::toward_zero, false, float, bf16, f16>(t, f, "toward_zero");
    test_rounding<S, ms::toward_positive, false, float, bf16, f16>(t, f, "toward_positive");
    test_rounding<S, ms::toward_negative, false, float, bf16, f16>(t, f, "toward_negative");
    test_rounding<S, ms::stochastic_midpoint8, true, float, bf16, f16>(t, f, "stochastic_midpoint8");
    test_rounding<S, ms::stochastic_midpoint16, false, float, bf16, f16>(t, f, "stochastic_midpoint16");
    test_rounding<S, ms::stochastic_midpoint32, false, float, bf16, f16>(t, f, "stochastic_midpoint32");
    test_rounding<S, ms::stochastic_floor8, false, float, bf16, f16>(t, f, "stochastic_floor8");
  } else {
    test_rounding<S, ms::nearest_even, false, float>(t, f, "nearest_even");
    test_rounding<S, ms::stochastic_midpoint8, true, bf16>(t, f, "stochastic_midpoint8");
    if constexpr (EveryRounding) {
      test_rounding<S, ms::toward_positive, false, f16>(t, f, "toward_positive");
      test_rounding<S, ms::toward_zero, false, float>(t, f, "toward_zero");
      test_rounding<S, ms::toward_negative, false, float>(t, f, "toward_negative");
      test_rounding<S, ms::stochastic_midpoint16, false, float>(t, f, "stochastic_midpoint16");
      test_rounding<S, ms::stochastic_midpoint32, false, float>(t, f, "stochastic_midpoint32");
      test_rounding<S, ms::stochastic_floor8, false, float>(t, f, "stochastic_floor8");
    }
  }
  test_dequantize<S>(t, r, f);
  r.end_group(name);
}

// The first argument of a program: how much to test. 0: small matrices alone, for slow tools; 1 unless given.
inline int effort_of(int argc, char** argv) { return argc > 1 ? std::atoi(argv[1]) : 1; }

}  // namespace device_test
