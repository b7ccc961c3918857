// `blackwell_k64`, `f32_blocks` and `exact_f32` on tensor cores, equal to their definitions (tensor/accumulate.hpp) bit
// for bit: E2M1 operands whose scales have at most four significant bits.
//
// blackwell_k64 rounds the exact sum of each group of 64 products to nearest even and adds the groups in order toward
// zero. Here a first kernel decodes each operand to BF16 (element times block scale, which BF16 holds exactly) in tiles
// of 128 rows by 64, and writes down for each tile how far apart the numbers in it lie. The main kernel multiplies
// tiles; from what is known of the two tiles it chooses, group by group, how to add up, so that no addition but the two
// that the definition names rounds.
//
// Why that is exact. Cut a group into four runs of 16 along k. In run p, let all elements of a row of A be multiples of
// 2^la_p and their Euclidean norm at most 2^na_p; lb_p and nb_p likewise for a row of B. Each product of run p is then
// exact in FP32 (at most 12 significant bits), a multiple of U_p = 2^(la_p + lb_p), and, by the Cauchy-Schwarz
// inequality, the magnitudes of the products of a run add up to at most M_p = 2^(na_p + nb_p).
//   Chained: the tensor core adds runs 0 and 1 in one accumulator. Whatever the order, every partial sum is a multiple
//   of U = min(U_0, U_1) of magnitude at most M_0 + M_1. If M_p <= 2^23 U_q for p, q in {0, 1}, that is at most 2^24 U:
//   a float holds every one exactly, so an addition in at least single precision (what the PTX manual promises for
//   these instructions) rounds none. The same holds for hardware that aligns all addends to the largest and drops what
//   falls below 24 bits: no addend is above 2^23 U, so nothing but zeros falls. With runs 2 and 3 in a second
//   accumulator, one addition to nearest even of the two *is* the rounding of the exact sum of the group. M_p <= 2^23
//   U_p always holds: a run's scale is s 2^e with s <= 15 and elements are halves up to 6, so M_p <= 16 (6 15)^2 2^(e +
//   e') < 2^17 2^(e + e') and U_p >= 2^(e + e' - 2). Binary64: each run has an accumulator of its own, exact by the
//   same argument. If all M_p <= 2^51 U_q, any sum of the four is a multiple of min U_q, at most 4 * 2^51 of them:
//   exact in binary64, and one conversion rounds. Double binary64: let all M_p <= 2^100 U_q. Knuth's two-sum gives s +
//   e = x + y exactly. The three errors of the three sums are multiples of min U_q, each at most half an ulp of a sum
//   of at most 2^102 U, so their sum is at most 3 * 2^49 U and exact. The sum of the group is then h + l exactly, with
//   h its rounding to binary64. Moving an even h one step toward l when l is not zero is rounding to odd, after which
//   rounding to 24 bits is rounding once.
// f32_blocks adds the exact sums of runs (8 bits of two scales times at most 12 of a dot product: no operation before
// that addition rounds) in order to nearest even, so it needs a run's sum alone, or the sum of two runs that share both
// scales, whose M and U differ as those of one run do. exact_f32 adds the sums of runs (or of two that chain) of all
// groups in binary64: every partial sum is a multiple of the least U, and at most 4 g times the largest M for g groups,
// so if 4 g M <= 2^53 U none rounds but the conversion at the end. All of it stays within the normal numbers if la_p +
// lb_p >= -126 and na_p + nb_p <= 124, and elements if la_p >= -126 and scales are below 2^125. A run of zeros, or
// under a NaN, puts no condition on the units of others: its sum is 0 or NaN. Where nothing is proven (E8M0
// scales at the ends of their range, or scales too far apart for exact_f32), the tile is left to the wide integers of
// the definition. Tiles are judged by the largest of each term of a condition over their rows; logarithms are rounded
// so that a condition can only fail too early.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "../tensor/accumulate.hpp"
#include "block.cuh"
#include "executor.cuh"
#include "tensor_core.cuh"

namespace microscale::detail::device {

// Which rows of A, and of C, belong to which of several products: those from offsets[g] to offsets[g + 1] to product g;
// or, without offsets, equal shares. Product g takes the g-th of as many equal shares of B's rows.
struct row_groups {
  const std::int32_t* offsets;
  index_t count;
  index_t rows;

  __device__ index_t first(index_t g) const { return offsets == nullptr ? rows / count * g : offsets[g]; }
  // `count` for a row of none.
  __device__ index_t group_of(index_t row) const {
    if (offsets == nullptr) return count == 1 ? 0 : row / (rows / count);
    index_t g = 0;
    while (g < count && row >= offsets[g + 1]) ++g;
    return row < offsets[0] ? count : g;
  }
};

// A tile's rows of an operand: [first, last), none if the tile is beyond the last.
struct row_slab {
  index_t group;
  index_t first;
  index_t last;
};

// An operand's tile: rows of 64 BF16 numbers, 16-byte piece i of row r at i ^ r % 8, zeros beyond the matrix.
inline constexpr int k64_rows = 128;
inline constexpr int k64_row_bytes = 128;
inline constexpr int k64_tile_bytes = k64_rows * k64_row_bytes;

// What is known of a tile: the largest over its rows, logarithms in halves, n being the norm's and l the unit's.
struct alignas(16) k64_bounds {
  std::int16_t cross[4];  // 2 n_p - 2 l_q of runs p = 0 ... 3, q being p's partner, p ^ 1
  std::int16_t spread;    // 2 n_p - 2 l_q of any two runs
  std::int16_t top;       // 2 n_p
  std::int16_t bottom;    // - 2 l_p
  std::int16_t unused;
};
// A run that puts no condition, and one that BF16 does not hold.
inline constexpr int k64_nothing = -4096;
inline constexpr int k64_outside = 8192;

// Tiles do not cross from one group to the next.
__device__ inline row_slab slab_of(const row_groups& groups, index_t tile) {
  if (groups.offsets == nullptr) {
    const index_t share = groups.rows / groups.count, tiles = ceil_div(share, index_t{k64_rows});
    const index_t g = tile / tiles, first = g * share + (tile - g * tiles) * k64_rows;
    return {g, first, smaller(first + k64_rows, (g + 1) * share)};
  }
  for (index_t g = 0; g < groups.count; ++g) {
    const index_t begin = groups.offsets[g], end = groups.offsets[g + 1];
    const index_t tiles = ceil_div(larger(end - begin, index_t{0}), index_t{k64_rows});
    if (tile < tiles) {
      const index_t first = begin + tile * k64_rows;
      return {g, first, smaller(first + k64_rows, end)};
    }
    tile -= tiles;
  }
  return {groups.count, 0, 0};
}
// How many tiles there are at most.
inline index_t most_slabs(const row_groups& groups) noexcept {
  if (groups.offsets == nullptr) return groups.count * ceil_div(groups.rows / groups.count, index_t{k64_rows});
  return ceil_div(groups.rows, index_t{k64_rows}) + groups.count;
}

enum class k64_mode { chained, binary64, double_binary64, none };

__device__ inline k64_mode choose_mode(const k64_bounds& a, const k64_bounds& b) {
  if (a.top + b.top > 2 * 124 || a.bottom + b.bottom > 2 * 126) return k64_mode::none;
  bool chains = true;
#pragma unroll
  for (int p = 0; p < 4; ++p) chains = chains && a.cross[p] + b.cross[p] <= 2 * 23;
  if (chains) return k64_mode::chained;
  const int spread = a.spread + b.spread;
  return spread <= 2 * 51 ? k64_mode::binary64 : spread <= 2 * 100 ? k64_mode::double_binary64 : k64_mode::none;
}

// An operand as the main kernel reads it, in the caller's workspace.
struct k64_operand {
  std::uint8_t* tiles;  // tile (i, g) at (i * groups + g) * k64_tile_bytes
  k64_bounds* bounds;
  float* decode;  // the tensor scale's decode multiplier of each row
};

template <class S>
inline constexpr bool fits_k64 = decodes_by_sixteen<S>&& S::scale::mantissa_bits <= 3;

// Whether every pair of tiles of two schemes has a mode.
template <class A, class B>
MICROSCALE_HD constexpr bool k64_always() noexcept {
  using sa = typename A::scale;
  using sb = typename B::scale;
  const int bits =
      span_bits<typename A::element>() + span_bits<typename B::element>() + span_bits<sa>() + span_bits<sb>() + 7;
  const int unit = A::element::step_exponent + B::element::step_exponent + sa::step_exponent + sb::step_exponent;
  return bits <= 96 && unit >= -126 && unit + bits <= 124;
}

// ---------------------------------------------------------------------------------------------------------------
// The first kernel.

// What the first kernel needs of a scale, looked up by its code.
struct k64_scale {
  std::uint32_t pair;    // see scale_pair
  std::uint16_t square;  // of its odd significand, at most 15^2; 0 for a scale of zero or NaN
  std::int16_t step;     // twice the exponent: elements are multiples of 2^(step / 2) times the odd significand
};
inline constexpr int k64_step_outside = 4000;  // the step of a scale that is too large

template <class S>
__device__ k64_scale k64_scale_of(typename S::scale::storage code) {
  const float s = S::scale::is_finite(code) ? decode_code<typename S::scale>(code) : fp32::quiet_nan();
  k64_scale r = {twice(exact_bf16(s)), 0, 0};
  if (fp32::is_zero(s) || !fp32::is_finite(s)) return r;
  const std::uint32_t bits = fp32::magnitude_bits(s);
  const std::uint32_t significand = (bits & 0x007FFFFFu) | (bits >> 23 != 0 ? 0x00800000u : 0u);
  const int zeros = __ffs(static_cast<int>(significand)) - 1;
  const std::uint32_t odd = significand >> zeros;
  const bool outside = bits >= (127u + 125u) << 23;
  r.square = static_cast<std::uint16_t>(odd * odd);
  r.step = static_cast<std::int16_t>(outside ? k64_step_outside
                                             : 2 * (larger(static_cast<int>(bits >> 23), 1) - 150 + zeros - 1));
  return r;
}

// Twice log2 of the norm and of the unit of a run of 16 codes, rounded up and down; nothing for a scale of zero or NaN.
// Zeros under another scale have no unit, and the scale itself for a norm: f32_blocks multiplies the two scales even
// then.
__device__ inline void measure(const std::uint32_t (&codes)[2], const k64_scale& scale, int& norm, int& unit) {
  norm = k64_nothing;
  unit = -k64_nothing;
  if (scale.square == 0) return;
  std::uint32_t squares = 0, any = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    // Doubled magnitudes of four elements.
    const std::uint32_t m = select_bytes(0x03020100u, 0x0C080604u, (codes[i / 2] >> (16 * (i % 2))) & 0x7777u);
    squares = __dp4a(m, m, squares);
    any |= m;
  }
  any |= any >> 16;
  any = (any | any >> 8) & 0xFFu;
  norm = 32 - __clz(static_cast<int>(larger(squares, 4u) * scale.square - 1u)) + scale.step;
  if (any != 0) unit = scale.step + 2 * (__ffs(static_cast<int>(any)) - 1);
  if (unit < -2 * 126 || scale.step == k64_step_outside) norm = k64_outside;
}

template <quantization_scheme S>
__global__ void __launch_bounds__(256)
    k64_prepare_kernel(const quantized_view<const S> q, const bool aligned, const row_groups rows, const index_t tiles,
                       const e2m1_places places, const k64_operand out) {
  __shared__ int reduced[8][7];
  __shared__ k64_scale scales[256];
  scales[threadIdx.x] = k64_scale_of<S>(static_cast<typename S::scale::storage>(threadIdx.x));
  __syncthreads();
  const index_t groups = ceil_div(q.cols, blackwell_k64::group);
  const int run = static_cast<int>(threadIdx.x) % 4, warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1
  for (index_t at = blockIdx.x; at < tiles; at += gridDim.x) {
    const index_t tile = at / groups, group = at - tile * groups;
    const row_slab slab = slab_of(rows, tile);
    if (slab.first >= slab.last) continue;
    const index_t k = group * blackwell_k64::group + run * 16;
    int cross = 2 * k64_nothing, spread = 2 * k64_nothing, top = k64_nothing, bottom = k64_nothing;
#pragma unroll
    for (int pass = 0; pass < 2; ++pass) {
      const int r = static_cast<int>(threadIdx.x) / 4 + 64 * pass;
      const index_t row = slab.first + r;
      const int n = row < slab.last ? static_cast<int>(larger(index_t{0}, smaller(index_t{16}, q.cols - k))) : 0;
      std::uint32_t codes[2] = {0, 0};
      k64_scale scale = {};
      if (n > 0) {
        const std::uint8_t* const p = q.codes + row * q.code_pitch + k / 2;
        codes[0] = load_eight(p, smaller(n, 8), aligned);
        if (n > 8) codes[1] = load_eight(p + 4, n - 8, aligned);
        scale = scales[q.scale(row, k)];
        if (run == 0 && group == 0) out.decode[row] = q.factors(q.tile_index(row, 0)).decode;
      }
      std::uint8_t* const to = out.tiles + at * k64_tile_bytes + r * k64_row_bytes;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        *reinterpret_cast<uint4*>(to + (((2 * run + half) ^ (r % 8)) * 16)) =
            decode_eight(codes[half], scale.pair, places);
      }
      int norm, unit;
      measure(codes, scale, norm, unit);
      cross = larger(cross, norm - __shfl_xor_sync(~0u, unit, 1));
      int row_top = norm, row_bottom = -unit;  // of the row's four runs
#pragma unroll
      for (int i = 1; i < 4; i *= 2) {
        row_top = larger(row_top, __shfl_xor_sync(~0u, row_top, i));
        row_bottom = larger(row_bottom, __shfl_xor_sync(~0u, row_bottom, i));
      }
      spread = larger(spread, row_top + row_bottom);
      top = larger(top, row_top);
      bottom = larger(bottom, row_bottom);
    }
#pragma unroll
    for (int i = 4; i < 32; i *= 2) cross = larger(cross, __shfl_xor_sync(~0u, cross, i));
    spread = largest_of_warp(spread);
    top = largest_of_warp(top);
    bottom = largest_of_warp(bottom);
    if (lane < 7) reduced[warp][lane] = lane < 4 ? cross : lane == 4 ? spread : lane == 5 ? top : bottom;
    __syncthreads();
    if (threadIdx.x < 8) {
      int most = 0;
      if (threadIdx.x < 7) {
        most = reduced[0][threadIdx.x];
#pragma unroll
        for (int w = 1; w < 8; ++w) most = larger(most, reduced[w][threadIdx.x]);
      }
      reinterpret_cast<std::int16_t*>(out.bounds + at)[threadIdx.x] = static_cast<std::int16_t>(most);
    }
    __syncthreads();
  }
}

// ---------------------------------------------------------------------------------------------------------------
// The main kernel: one thread block per multiprocessor takes 128 x 128 outputs at a time. Four warps bring tiles into a
// ring of stages in shared memory, eight multiply and add.

struct k64_call {
  k64_operand a;
  k64_operand b;
  std::uint32_t* left;  // for each tile of outputs: whether it has no mode; null if all have one
  matrix_view<float> c;
  row_groups rows;
  index_t tile_rows;
  index_t groups;  // along k
  int stages;
  bool blocks_of_32;  // of both operands
  bool has_alpha;
  float alpha;
};

inline constexpr int k64_producers = 128;
inline constexpr int k64_consumers = 256;
inline constexpr int k64_most_stages = 6;
inline constexpr int k64_stage_bytes = 2 * k64_tile_bytes;

// Shared memory: stages, aligned to 1024 bytes; bounds of both tiles of each stage; barriers.
MICROSCALE_HD constexpr int k64_shared_bytes(int stages) noexcept {
  return 1024 + stages * (k64_stage_bytes + 2 * static_cast<int>(sizeof(k64_bounds)) + 16);
}

struct k64_stages {
  std::uint32_t tiles;
  std::uint32_t bounds;
  std::uint32_t barriers;
  std::uint8_t* bounds_pointer;
  int count;

  __device__ k64_stages(std::uint8_t* shared, int stages) : count(stages) {
    const std::uint32_t start = shared_address(shared);
    tiles = (start + 1023u) / 1024u * 1024u;
    const std::uint32_t offset = static_cast<std::uint32_t>(stages * k64_stage_bytes);
    bounds = tiles + offset;
    bounds_pointer = shared + (bounds - start);
    barriers = bounds + static_cast<std::uint32_t>(stages) * 2 * sizeof(k64_bounds);
  }
  __device__ std::uint32_t a(int s) const { return tiles + static_cast<std::uint32_t>(s * k64_stage_bytes); }
  __device__ std::uint32_t b(int s) const { return a(s) + k64_tile_bytes; }
  __device__ std::uint32_t bounds_at(int s) const { return bounds + static_cast<std::uint32_t>(s) * 32; }
  __device__ std::uint32_t full(int s) const { return barriers + static_cast<std::uint32_t>(s) * 16; }
  __device__ std::uint32_t free(int s) const { return full(s) + 8; }
  // Those of both tiles.
  __device__ const k64_bounds* bounds_of(int s) const {
    return reinterpret_cast<const k64_bounds*>(bounds_pointer + s * 32);
  }
};

// Where a walk through stages stands: the stage, and the parity of its round.
struct k64_place {
  int stage = 0;
  unsigned round = 0;

  __device__ void advance(int stages) {
    if (++stage == stages) {
      stage = 0;
      round ^= 1u;
    }
  }
};

// Tile `t` of the outputs: bands of 16 rows of tiles, so that blocks at work at one time share tiles of both operands.
struct k64_output {
  index_t row;
  index_t col;

  __device__ k64_output(index_t t, index_t rows, index_t cols) {
    constexpr index_t band = 16;
    const index_t first = t / (band * cols) * band, height = smaller(band, rows - first);
    const index_t rest = t - first * cols;
    col = rest / height;
    row = first + rest - col * height;
  }
};

__device__ inline void copy_16_async(std::uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

// Brings the tiles of group g of an output tile into a stage.
__device__ inline void k64_fill(const k64_call& call, const k64_stages& stages, int s, index_t a_tile, index_t b_tile,
                                index_t g) {
  const index_t ta = a_tile * call.groups + g, tb = b_tile * call.groups + g;
  const std::uint8_t* const a = call.a.tiles + ta * k64_tile_bytes;
  const std::uint8_t* const b = call.b.tiles + tb * k64_tile_bytes;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  const auto copy = [&](std::uint32_t to, const void* from, unsigned bytes) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(stages.full(s))
                 : "memory");
  };
  constexpr unsigned bytes = k64_stage_bytes + 2 * sizeof(k64_bounds);
  asm volatile("{ .reg .b64 state; mbarrier.arrive.expect_tx.shared.b64 state, [%0], %1; }" ::"r"(stages.full(s)),
               "r"(bytes)
               : "memory");
  copy(stages.a(s), a, k64_tile_bytes);
  copy(stages.b(s), b, k64_tile_bytes);
  copy(stages.bounds_at(s), call.a.bounds + ta, sizeof(k64_bounds));
  copy(stages.bounds_at(s) + sizeof(k64_bounds), call.b.bounds + tb, sizeof(k64_bounds));
#else
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int i = 0; i < k64_tile_bytes / 16 / k64_producers; ++i) {
    const int offset = (i * k64_producers + thread) * 16;
    copy_16_async(stages.a(s) + static_cast<std::uint32_t>(offset), a + offset);
    copy_16_async(stages.b(s) + static_cast<std::uint32_t>(offset), b + offset);
  }
  if (thread == 0) copy_16_async(stages.bounds_at(s), call.a.bounds + ta);
  if (thread == 1) copy_16_async(stages.bounds_at(s) + sizeof(k64_bounds), call.b.bounds + tb);
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(stages.full(s)) : "memory");
#endif
}

// How many threads fill a stage.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
inline constexpr unsigned k64_fillers = k64_producers;
#else
inline constexpr unsigned k64_fillers = 1;
#endif

__device__ inline double two_sum(double a, double b, double& error) {
  const double s = __dadd_rn(a, b);
  const double part = __dsub_rn(s, a);
  error = __dadd_rn(__dsub_rn(a, __dsub_rn(s, part)), __dsub_rn(b, part));
  return s;
}

// How the sums of a group's four runs are added to an output. `chain`: the tensor core has added runs 1 and 3 to those
// before them.
struct add_chained_runs {
  static constexpr bool chain = true;
  __device__ static float add(float total, const float (&t)[4]) { return add_rz(total, fp32::add(t[1], t[3])); }
};
struct add_in_binary64 {
  static constexpr bool chain = false;
  __device__ static float add(float total, const float (&t)[4]) {
    return add_rz(total, __double2float_rn(__dadd_rn(__dadd_rn(t[0], t[1]), __dadd_rn(t[2], t[3]))));
  }
};
struct add_in_double_binary64 {
  static constexpr bool chain = false;
  __device__ static float add(float total, const float (&t)[4]) {
    double e0, e1, e2, low;
    const double sum = two_sum(two_sum(t[0], t[1], e0), two_sum(t[2], t[3], e1), e2);
    const double high = two_sum(sum, __dadd_rn(__dadd_rn(e0, e1), e2), low);
    long long bits = __double_as_longlong(high);
    const long long low_bits = __double_as_longlong(low);
    if ((low_bits << 1) != 0 && (bits & 1) == 0) bits += (low_bits ^ bits) < 0 ? -1 : 1;
    return add_rz(total, __double2float_rn(__longlong_as_double(bits)));
  }
};
// f32_blocks, whose runs are the blocks of 16, or pairs of these.
struct add_blocks_of_16 {
  static constexpr bool chain = false;
  __device__ static float add(float total, const float (&t)[4]) {
    return fp32::add(fp32::add(fp32::add(fp32::add(total, t[0]), t[1]), t[2]), t[3]);
  }
};
struct add_blocks_of_32 {
  static constexpr bool chain = true;
  __device__ static float add(float total, const float (&t)[4]) { return fp32::add(fp32::add(total, t[1]), t[3]); }
};

// exact_f32, of runs that chain and of others.
struct add_exactly_chained {
  static constexpr bool chain = true;
  __device__ static double add(double total, const float (&t)[4]) { return __dadd_rn(total, __dadd_rn(t[1], t[3])); }
};
struct add_exactly {
  static constexpr bool chain = false;
  __device__ static double add(double total, const float (&t)[4]) {
    return __dadd_rn(total, __dadd_rn(__dadd_rn(t[0], t[1]), __dadd_rn(t[2], t[3])));
  }
};

__device__ inline float rounded_total(float total) { return total; }
__device__ inline float rounded_total(double total) { return __double2float_rn(total); }

// A warp's outputs: MI x NI tiles of 16 x 8 from (row, col) of the thread block's.
template <class Total, int MI, int NI>
struct k64_warp {
  Total total[MI * NI * 4];
  int row;
  int col;

  __device__ void clear() {
#pragma unroll
    for (Total& t : total) t = 0;
  }

  // Adds a group by mma.
  template <class How>
  __device__ void add_group(std::uint32_t a_tile, std::uint32_t b_tile) {
    const std::uint32_t lane = threadIdx.x % 32;
    const std::uint32_t a_row = a_tile + (static_cast<std::uint32_t>(row) + lane % 16) * k64_row_bytes;
    const std::uint32_t b_row = b_tile + (static_cast<std::uint32_t>(col) + lane % 8) * k64_row_bytes;
    std::uint32_t a[MI][4][4];
#pragma unroll
    for (int mi = 0; mi < MI; ++mi) {
#pragma unroll
      for (std::uint32_t p = 0; p < 4; ++p) {
        load_matrices(
            a_row + static_cast<std::uint32_t>(mi) * 16 * k64_row_bytes + (((2 * p + lane / 16) ^ (lane % 8)) * 16),
            a[mi][p]);
      }
    }
#pragma unroll
    for (int ni = 0; ni < NI; ++ni) {
      std::uint32_t b[4][2];
#pragma unroll
      for (std::uint32_t half = 0; half < 2; ++half) {
        load_matrices(
            b_row + static_cast<std::uint32_t>(ni) * 8 * k64_row_bytes + (((4 * half + lane / 8) ^ (lane % 8)) * 16),
            b[2 * half]);
      }
#pragma unroll
      for (int mi = 0; mi < MI; ++mi) {
        const float zero[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        Total* const sum = total + (mi * NI + ni) * 4;
        float t[4][4];
#pragma unroll
        for (int p = 0; p < 4; ++p) {
          multiply_tile(t[p], a[mi][p], b[p], How::chain && p % 2 == 1 ? t[p - p % 2] : zero);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[i] = How::add(sum[i], {t[0][i], t[1][i], t[2][i], t[3][i]});
      }
    }
  }

  __device__ void store(const k64_call& call, const row_slab& slab, index_t tile_col) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int mi = 0; mi < MI; ++mi) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const index_t i = slab.first + row + mi * 16 + half * 8 + lane / 4;
        if (i >= slab.last) continue;
        const float left = call.has_alpha ? call.alpha : call.a.decode[i];
        float* const out = &call.c(i, 0);
#pragma unroll
        for (int ni = 0; ni < NI; ++ni) {
          const index_t j = tile_col * k64_rows + col + ni * 8 + lane % 4 * 2;
          float y[2];
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            if (j + e >= call.c.cols) continue;
            const float alpha =
                call.has_alpha ? left : fp32::mul(left, call.b.decode[slab.group * call.c.cols + j + e]);
            y[e] = fp32::mul(rounded_total(total[(mi * NI + ni) * 4 + half * 2 + e]), alpha);
          }
          if (j + 1 < call.c.cols && reinterpret_cast<std::uintptr_t>(out + j) % 8 == 0) {
            *reinterpret_cast<float2*>(out + j) = make_float2(y[0], y[1]);
          } else {
            if (j < call.c.cols) out[j] = y[0];
            if (j + 1 < call.c.cols) out[j + 1] = y[1];
          }
        }
      }
    }
  }
};

template <class P>
using k64_total = std::conditional_t<std::is_same_v<P, exact_f32>, double, float>;

// What each warp takes. Warpgroup instructions give a warp 16 rows; mma reads shared memory least from 32 x 64.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
template <class P>
using k64_share = k64_warp<k64_total<P>, 1, 16>;
template <class Share>
__device__ void k64_set_share(Share& w, int warp) {
  w.row = warp * 16;
  w.col = 0;
}
#else
template <class P>
using k64_share = k64_warp<k64_total<P>, 2, 8>;
template <class Share>
__device__ void k64_set_share(Share& w, int warp) {
  w.row = warp / 2 * 32;
  w.col = warp % 2 * 64;
}
#endif

// A consumer's walk through the groups of a tile.
struct k64_walk {
  const k64_stages& stages;
  k64_place place;
  index_t left;   // groups of the tile
  k64_mode mode;  // of the group at `place`, where there is one
  int top;        // the largest of all groups so far: twice log2 of M
  int bottom;     // and of 1 / U

  __device__ void begin(index_t groups) {
    left = groups;
    top = bottom = 2 * k64_nothing;
    look();
  }
  __device__ void look() {
    if (left == 0) return;
    barrier_wait(stages.full(place.stage), place.round);
    const k64_bounds* const both = stages.bounds_of(place.stage);
    mode = choose_mode(both[0], both[1]);
    top = larger(top, both[0].top + both[1].top);
    bottom = larger(bottom, both[0].bottom + both[1].bottom);
  }
  // Whether binary64 holds every sum of the terms of `groups` groups.
  __device__ bool sums_are_exact(index_t groups) const {
    return top + bottom + 2 * (64 - __clzll(4 * groups - 1)) <= 2 * 53;
  }
  // Goes on to the next group; `stage` must be given back with release() when nothing reads it any more.
  __device__ int next() {
    const int stage = place.stage;
    place.advance(stages.count);
    --left;
    look();
    return stage;
  }
  __device__ void release(int stage) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(stages.free(stage));
  }
};

// Adds a group whose runs chain.
template <class How, class Share>
__device__ void k64_add_chain(Share& w, k64_walk& walk) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  // The two warpgroups take turns at the tensor core, so that one adds while the other multiplies. Barriers 1 and 2;
  // both warpgroups see the same groups, so each waits as often as the other gives way.
  const int warpgroup = w.row / 64;
  const std::uint64_t a =
      matrix_descriptor(walk.stages.a(walk.place.stage) + static_cast<std::uint32_t>(warpgroup * 64 * k64_row_bytes));
  const std::uint64_t b = matrix_descriptor(walk.stages.b(walk.place.stage));
  float first[64], second[64];
  wait_turn(1 + warpgroup);
  warpgroup_arrive();
  multiply_warpgroup(first, a, b, 0);
  multiply_warpgroup(first, a + 2, b + 2, 1);
  warpgroup_commit();
  multiply_warpgroup(second, a + 4, b + 4, 0);
  multiply_warpgroup(second, a + 6, b + 6, 1);
  warpgroup_commit();
  warpgroup_wait<1>();
  give_turn(2 - warpgroup);
  const int stage = walk.next();
  warpgroup_wait<0>();
  walk.release(stage);
  hold(first);
  hold(second);
#pragma unroll
  for (int i = 0; i < 64; ++i) w.total[i] = How::add(w.total[i], {0.0f, first[i], 0.0f, second[i]});
#else
  w.template add_group<How>(walk.stages.a(walk.place.stage), walk.stages.b(walk.place.stage));
  walk.release(walk.next());
#endif
}
template <class How, class Share>
__device__ void k64_add_one(Share& w, k64_walk& walk) {
  w.template add_group<How>(walk.stages.a(walk.place.stage), walk.stages.b(walk.place.stage));
  walk.release(walk.next());
}

// Adds the groups of a tile as P says; false if nothing proves that it would be exact.
template <class P>
__device__ bool k64_add_all(k64_share<P>& w, const k64_call& call, k64_walk& walk) {
  bool proven = true;
#pragma unroll 1
  while (walk.left > 0) {
    if (walk.mode == k64_mode::none) {
      proven = false;
      walk.release(walk.next());
    } else if constexpr (std::is_same_v<P, exact_f32>) {
      if (walk.mode == k64_mode::chained) {
        k64_add_one<add_exactly_chained>(w, walk);
      } else {
        k64_add_one<add_exactly>(w, walk);
      }
    } else if constexpr (std::is_same_v<P, f32_blocks>) {
      if (call.blocks_of_32) {
        k64_add_chain<add_blocks_of_32>(w, walk);
      } else {
        k64_add_one<add_blocks_of_16>(w, walk);
      }
    } else if (walk.mode == k64_mode::chained) {
      k64_add_chain<add_chained_runs>(w, walk);
    } else if (walk.mode == k64_mode::binary64) {
      k64_add_one<add_in_binary64>(w, walk);
    } else {
      k64_add_one<add_in_double_binary64>(w, walk);
    }
  }
  return proven && (!std::is_same_v<P, exact_f32> || walk.sums_are_exact(call.groups));
}

template <class P>
__device__ void k64_consume(const k64_call& call, const k64_stages& stages, index_t tile_cols) {
  k64_share<P> share;
  k64_set_share(share, static_cast<int>(threadIdx.x) / 32 - k64_producers / 32);
  k64_walk walk{stages, {}, 0, k64_mode::none, 0, 0};
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  if (share.row >= 64) give_turn(1);  // the first turn is the first warpgroup's
#endif
#pragma unroll 1
  for (index_t t = blockIdx.x; t < call.tile_rows * tile_cols; t += gridDim.x) {
    const k64_output at(t, call.tile_rows, tile_cols);
    const row_slab slab = slab_of(call.rows, at.row);
    if (slab.first >= slab.last) continue;
    share.clear();
    walk.begin(call.groups);
    const bool proven = k64_add_all<P>(share, call, walk);
    if (call.left != nullptr && threadIdx.x == k64_producers) call.left[t] = proven ? 0 : 1;
    if (proven) share.store(call, slab, at.col);
  }
}

__device__ inline void k64_produce(const k64_call& call, const k64_stages& stages, index_t tile_cols) {
  if (threadIdx.x >= k64_fillers) return;
  k64_place place;
#pragma unroll 1
  for (index_t t = blockIdx.x; t < call.tile_rows * tile_cols; t += gridDim.x) {
    const k64_output at(t, call.tile_rows, tile_cols);
    const row_slab slab = slab_of(call.rows, at.row);
    if (slab.first >= slab.last) continue;
    const index_t b_tile = slab.group * tile_cols + at.col;
#pragma unroll 1
    for (index_t g = 0; g < call.groups; ++g) {
      barrier_wait(stages.free(place.stage), place.round ^ 1u);  // the first round waits for nobody
      k64_fill(call, stages, place.stage, at.row, b_tile, g);
      place.advance(stages.count);
    }
  }
}

template <exact_accumulation P>
__global__ void __launch_bounds__(k64_producers + k64_consumers, 1) k64_kernel(const k64_call call) {
  extern __shared__ std::uint8_t k64_shared[];
  const k64_stages stages(k64_shared, call.stages);
  if (threadIdx.x == 0) {
    for (int s = 0; s < call.stages; ++s) {
      barrier_init(stages.full(s), k64_fillers);
      barrier_init(stages.free(s), k64_consumers / 32);
    }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async;" ::: "memory");
#endif
  }
  __syncthreads();
  const index_t tile_cols = ceil_div(call.c.cols, index_t{k64_rows});
  if (threadIdx.x < k64_producers) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
#endif
    k64_produce(call, stages, tile_cols);
  } else {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
#endif
    k64_consume<P>(call, stages, tile_cols);
  }
}

// ---------------------------------------------------------------------------------------------------------------
// On the host.

// How a workspace is divided: tiles, bounds and decode multipliers of both operands, and a word for each tile of
// outputs.
struct k64_plan {
  row_groups a_rows;
  row_groups b_rows;
  index_t groups;  // along k
  index_t a_tiles;
  index_t b_tiles;

  k64_plan(const row_groups& rows, index_t b_row_count, index_t k)
      : a_rows(rows),
        b_rows{nullptr, rows.count, b_row_count},
        groups(ceil_div(k, blackwell_k64::group)),
        a_tiles(most_slabs(a_rows)),
        b_tiles(most_slabs(b_rows)) {}

  index_t output_tiles() const noexcept { return a_tiles * (b_tiles / b_rows.count); }
  std::size_t bytes() const noexcept {
    return static_cast<std::size_t>(operand_bytes(a_tiles, a_rows.rows) + operand_bytes(b_tiles, b_rows.rows) +
                                    output_tiles() * index_t{sizeof(std::uint32_t)});
  }
  index_t operand_bytes(index_t tiles, index_t rows) const noexcept {
    return tiles * groups * (k64_tile_bytes + index_t{sizeof(k64_bounds)}) +
           round_up(rows * index_t{sizeof(float)}, index_t{16});
  }
  k64_operand operand(std::byte* memory, index_t tiles) const noexcept {
    k64_operand o;
    o.tiles = reinterpret_cast<std::uint8_t*>(memory);
    o.bounds = reinterpret_cast<k64_bounds*>(memory + tiles * groups * k64_tile_bytes);
    o.decode = reinterpret_cast<float*>(o.bounds + tiles * groups);
    return o;
  }
  k64_operand a(std::byte* memory) const noexcept { return operand(memory, a_tiles); }
  k64_operand b(std::byte* memory) const noexcept {
    return operand(memory + operand_bytes(a_tiles, a_rows.rows), b_tiles);
  }
  std::uint32_t* left(std::byte* memory) const noexcept {
    return reinterpret_cast<std::uint32_t*>(memory + operand_bytes(a_tiles, a_rows.rows) +
                                            operand_bytes(b_tiles, b_rows.rows));
  }
};

template <class S>
void k64_prepare(const cuda& executor, const quantized_view<const S>& q, const row_groups& rows, index_t tiles,
                 const k64_operand& out) {
  const bool aligned = is_aligned(q.codes, q.code_pitch, 4);
  cuda with_threads = executor;
  with_threads.launch.threads = 256;
  // A few thread blocks for each multiprocessor, since each begins with a table of all scales.
  const index_t blocks = smaller(tiles, index_t{8} * device_attribute(cudaDevAttrMultiProcessorCount));
  launch(with_threads, "GEMM", &k64_prepare_kernel<S>, blocks, q, aligned, rows, tiles, e2m1_places{}, out);
}

template <class P>
void k64_multiply(const cuda& executor, k64_call call, index_t output_tiles) {
  constexpr int stage = k64_shared_bytes(1) - k64_shared_bytes(0);
  const int room = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) - k64_shared_bytes(0);
  call.stages = smaller(room / stage, k64_most_stages);
  const auto kernel = &k64_kernel<P>;
  const cudaError_t pending = cudaPeekAtLastError();
  check_cuda("GEMM",
             cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, k64_shared_bytes(call.stages)),
             pending);
  cudaLaunchConfig_t config = {};
  const index_t blocks = smaller(output_tiles, index_t{device_attribute(cudaDevAttrMultiProcessorCount)});
  config.gridDim = dim3(static_cast<unsigned>(smaller(blocks, index_t{executor.launch.max_blocks})));
  config.blockDim = dim3(k64_producers + k64_consumers);
  config.dynamicSmemBytes = static_cast<std::size_t>(k64_shared_bytes(call.stages));
  config.stream = executor.stream;
  check_cuda("GEMM", cudaLaunchKernelEx(&config, kernel, call), pending);
}

}  // namespace microscale::detail::device
