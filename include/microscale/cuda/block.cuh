// How threads share blocks: which thread takes which elements, and how it reads and writes them.
//
// A thread works on a *chunk*, up to 16 neighbours along K of one row of a block, in registers. The threads of one
// block sit in one warp; arrays are indexed by constants alone, so that none of them lands in local memory.
#pragma once

#include <cstdint>

#include "../block/quantize_block.hpp"
#include "executor.cuh"
#include "number.cuh"

namespace microscale::detail::device {

MICROSCALE_HD constexpr int common_divisor(int a, int b) noexcept { return b == 0 ? a : common_divisor(b, a % b); }

// How a block is split over threads. `Cooperate` is false for rules whose result depends on the order in which one
// thread sees the elements.
template <class Block, bool Cooperate = true>
struct block_split {
  static constexpr int chunk = common_divisor(16, Block::columns);
  static constexpr int chunks = Block::elements / chunk;
  static constexpr int threads = Cooperate ? common_divisor(32, chunks) : 1;
  static constexpr int passes = chunks / threads;  // chunks of one thread
  static constexpr int groups = 32 / threads;      // blocks that a warp works on at once
};

// In which order blocks go over threads; (block row, block column) of the grid of the stored matrix.
//   row_major  neighbours along K are neighbours: for inputs that lie K-major
//   col_major  neighbours across K are neighbours: for square blocks of inputs that lie the other way round
//   tiled      a warp takes blocks that are neighbours across K, the thread block's warps follow along K: for runs down
//              the columns of an input, whose reads are then coalesced and whose codes fill whole sectors
enum class block_order : std::uint8_t { row_major, col_major, tiled };

// The blocks of a call, padding of the scale layout included, as an index space for thread blocks.
struct block_grid {
  index_t rows = 0;
  index_t cols = 0;
  block_order order = block_order::row_major;
};

struct block_place {
  index_t row;
  index_t col;
  bool inside;  // of the grid
};

// Where a thread stands: lane `member` of the `threads` that share a block, in group `group` of its thread block.
template <class Split>
struct block_team {
  int member;
  int group;
  unsigned mask;  // the lanes of the warp that share the block

  __device__ explicit block_team(block_order order) {
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
    if (order == block_order::tiled) {  // the lanes of a group lie `groups` apart
      member = lane / Split::groups;
      group = thread / 32 * Split::groups + lane % Split::groups;
      unsigned m = 0;
#pragma unroll
      for (int i = 0; i < Split::threads; ++i) m |= 1u << (i * Split::groups % 32);
      mask = m << (lane % Split::groups);
    } else {
      member = thread % Split::threads;
      group = thread / Split::threads;
      mask = (Split::threads == 32 ? ~0u : (1u << (Split::threads % 32)) - 1u) << (lane - member);
    }
  }
};

template <class Split>
MICROSCALE_HD index_t count_thread_blocks(const block_grid& grid, index_t threads) noexcept {
  if (grid.order == block_order::tiled) {
    return ceil_div(grid.rows, index_t{Split::groups}) * ceil_div(grid.cols, threads / 32);
  }
  return ceil_div(grid.rows * grid.cols, threads / Split::threads);
}

// The block of a group in step `step` of the index space.
template <class Split>
__device__ block_place place_of(const block_grid& grid, index_t step, int group) {
  block_place p;
  if (grid.order == block_order::tiled) {
    const index_t tile_rows = ceil_div(grid.rows, index_t{Split::groups});
    p.row = step % tile_rows * Split::groups + group % Split::groups;
    p.col = step / tile_rows * (blockDim.x / 32) + group / Split::groups;
    p.inside = p.row < grid.rows && p.col < grid.cols;
  } else {
    const index_t i = step * (blockDim.x / Split::threads) + group;
    const bool by_rows = grid.order == block_order::row_major;
    const index_t inner = by_rows ? grid.cols : grid.rows;
    const index_t outer = i / inner, rest = i - outer * inner;
    p.row = by_rows ? outer : rest;
    p.col = by_rows ? rest : outer;
    p.inside = i < grid.rows * grid.cols;
  }
  return p;
}

// The amax of a block from those of its threads.
template <class Split>
__device__ running_amax combine(const running_amax& own, unsigned mask) {
  if constexpr (Split::threads == 1) {
    return own;
  } else {
    running_amax all;
    const bool any_nan = __any_sync(mask, fp32::is_nan(own.with_nan())) != 0;
    all.see(fp32::from_bits(__reduce_max_sync(mask, fp32::bits(own.ignoring_nan()))));
    if (any_nan) all.see(fp32::quiet_nan());
    return all;
  }
}

// ---------------------------------------------------------------------------------------------------------------
// Chunks in memory.

// A matrix as kernels address it: element (r, k) of the *stored* orientation at data[r * row_stride + k * k_stride].
template <class T>
struct strided_matrix {
  T* data = nullptr;
  index_t row_stride = 0;
  index_t k_stride = 0;
  bool wide = false;  // whether every chunk begins on 16 bytes and is contiguous

  __device__ T* at(index_t r, index_t k) const { return data + (r * row_stride + k * k_stride); }
};

inline bool is_aligned(const void* p, index_t pitch_bytes, index_t to) noexcept {
  return reinterpret_cast<std::uintptr_t>(p) % static_cast<std::uintptr_t>(to) == 0 && pitch_bytes % to == 0;
}

template <class T>
strided_matrix<T> as_stored(const matrix_view<T>& m, axis along) noexcept {
  strided_matrix<T> s;
  s.data = m.data;
  s.row_stride = along == axis::row ? m.pitch : 1;
  s.k_stride = along == axis::row ? 1 : m.pitch;
  s.wide = along == axis::row && is_aligned(m.data, m.pitch * static_cast<index_t>(sizeof(T)), 16);
  return s;
}

// Two 16-bit elements or one float of a 32-bit word.
template <class T>
__device__ void unpack_word(std::uint32_t word, float* x) {
  if constexpr (sizeof(T) == 4) {
    x[0] = fp32::from_bits(word);
  } else {
    x[0] = load_float(T::from_code(static_cast<std::uint16_t>(word)));
    x[1] = load_float(T::from_code(static_cast<std::uint16_t>(word >> 16)));
  }
}
template <class T>
__device__ std::uint32_t pack_word(const float* x) {
  if constexpr (sizeof(T) == 4) {
    return fp32::bits(x[0]);
  } else {
    return store_float<T>(x[0]).code() | std::uint32_t{store_float<T>(x[1]).code()} << 16;
  }
}

// Elements [0, n) of the chunk at p; zeros beyond.
template <class T, int Chunk>
__device__ void load_chunk(const T* p, index_t stride, int n, bool wide, float (&x)[Chunk]) {
  constexpr int per_word = 4 / static_cast<int>(sizeof(T)), per_load = 4 * per_word;
  if constexpr (Chunk % per_load == 0) {
    if (wide && n == Chunk) {
#pragma unroll
      for (int i = 0; i < Chunk; i += per_load) {
        const uint4 v = *reinterpret_cast<const uint4*>(p + i);
        unpack_word<T>(v.x, x + i);
        unpack_word<T>(v.y, x + i + per_word);
        unpack_word<T>(v.z, x + i + 2 * per_word);
        unpack_word<T>(v.w, x + i + 3 * per_word);
      }
      return;
    }
  }
#pragma unroll
  for (int i = 0; i < Chunk; ++i) x[i] = i < n ? load_float(p[i * stride]) : 0.0f;
}

template <class T, int Chunk>
__device__ void store_chunk(T* p, index_t stride, int n, bool wide, const float (&x)[Chunk]) {
  constexpr int per_word = 4 / static_cast<int>(sizeof(T)), per_store = 4 * per_word;
  if constexpr (Chunk % per_store == 0) {
    if (wide && n == Chunk) {
#pragma unroll
      for (int i = 0; i < Chunk; i += per_store) {
        *reinterpret_cast<uint4*>(p + i) =
            make_uint4(pack_word<T>(x + i), pack_word<T>(x + i + per_word), pack_word<T>(x + i + 2 * per_word),
                       pack_word<T>(x + i + 3 * per_word));
      }
      return;
    }
  }
#pragma unroll
  for (int i = 0; i < Chunk; ++i) {
    if (i < n) p[i * stride] = store_float<T>(x[i]);
  }
}

// The codes of a chunk as they lie in memory, a little-endian stream in 32-bit words.
template <class Format, int Chunk>
struct packed_chunk {
  static constexpr int bits = Format::bits;
  static constexpr int bytes = Chunk * bits / 8;
  static_assert(Chunk * bits % 8 == 0);
  // The widest access that every full chunk allows, if memory begins on a multiple of it.
  static constexpr int access = common_divisor(16, bytes);

  std::uint32_t word[(bytes + 3) / 4] = {};

  // Only with constants for i, after unrolling.
  __device__ void put(int i, std::uint32_t code) {
    const int at = i * bits;
    word[at / 32] |= code << (at % 32);
    if (at % 32 + bits > 32) word[at / 32 + 1] |= code >> (32 - at % 32);
  }
  __device__ typename Format::storage get(int i) const {
    const int at = i * bits;
    std::uint32_t code = word[at / 32] >> (at % 32);
    if (at % 32 + bits > 32) code |= word[at / 32 + 1] << (32 - at % 32);
    return static_cast<typename Format::storage>(code & ((std::uint32_t{1} << bits) - 1u));
  }

  // The bytes that hold codes [0, n).
  __device__ void store(std::uint8_t* p, int n, bool aligned) const {
    if (aligned && n == Chunk) {
      if constexpr (access == 16) {
#pragma unroll
        for (int i = 0; i < bytes / 16; ++i) {
          reinterpret_cast<uint4*>(p)[i] = make_uint4(word[4 * i], word[4 * i + 1], word[4 * i + 2], word[4 * i + 3]);
        }
        return;
      } else if constexpr (access == 8) {
#pragma unroll
        for (int i = 0; i < bytes / 8; ++i) reinterpret_cast<uint2*>(p)[i] = make_uint2(word[2 * i], word[2 * i + 1]);
        return;
      } else if constexpr (access == 4) {
#pragma unroll
        for (int i = 0; i < bytes / 4; ++i) reinterpret_cast<std::uint32_t*>(p)[i] = word[i];
        return;
      }
    }
    const int valid = static_cast<int>(packed_bytes(bits, n));
#pragma unroll
    for (int i = 0; i < bytes; ++i) {
      if (i < valid) p[i] = static_cast<std::uint8_t>(word[i / 4] >> (8 * (i % 4)));
    }
  }
  __device__ void load(const std::uint8_t* p, int n, bool aligned) {
    if (aligned && n == Chunk) {
      if constexpr (access == 16) {
#pragma unroll
        for (int i = 0; i < bytes / 16; ++i) {
          const uint4 v = reinterpret_cast<const uint4*>(p)[i];
          word[4 * i] = v.x, word[4 * i + 1] = v.y, word[4 * i + 2] = v.z, word[4 * i + 3] = v.w;
        }
        return;
      } else if constexpr (access == 8) {
#pragma unroll
        for (int i = 0; i < bytes / 8; ++i) {
          const uint2 v = reinterpret_cast<const uint2*>(p)[i];
          word[2 * i] = v.x, word[2 * i + 1] = v.y;
        }
        return;
      } else if constexpr (access == 4) {
#pragma unroll
        for (int i = 0; i < bytes / 4; ++i) word[i] = reinterpret_cast<const std::uint32_t*>(p)[i];
        return;
      }
    }
    const int valid = static_cast<int>(packed_bytes(bits, n));
#pragma unroll
    for (int i = 0; i < bytes; ++i) {
      if (i < valid) word[i / 4] |= std::uint32_t{p[i]} << (8 * (i % 4));
    }
  }
};

// ---------------------------------------------------------------------------------------------------------------
// Elements in registers as they lie in memory.

template <class T, int N>
struct element_run {
  static constexpr int per_word = 4 / static_cast<int>(sizeof(T));
  static constexpr int words = N / per_word;
  static_assert(words % 4 == 0, "a run is read in vectors of 16 bytes");

  std::uint32_t word[words];

  __device__ void load(const T* p) {
#pragma unroll
    for (int i = 0; i < words; i += 4) {
      const uint4 v = *reinterpret_cast<const uint4*>(p + i * per_word);
      word[i] = v.x, word[i + 1] = v.y, word[i + 2] = v.z, word[i + 3] = v.w;
    }
  }
  // Elements M * part ... + M - 1.
  template <int M>
  __device__ element_run<T, M> slice(int part) const {
    element_run<T, M> run;
#pragma unroll
    for (int i = 0; i < run.words; ++i) run.word[i] = word[part * run.words + i];
    return run;
  }
  // Element i, any NaN for a NaN. Only with constants for i, after unrolling.
  __device__ float at(int i) const {
    float x[per_word];
    unpack_word<T>(word[i / per_word], x);
    return x[i % per_word];
  }
  // The largest magnitudes of all words, of each half where elements have 16 bits; for largest_of.
  __device__ std::uint32_t largest_word() const {
    std::uint32_t even = word[0], odd = word[1];  // two chains, each of which waits for itself
#pragma unroll
    for (int i = 2; i < words; i += 2) {
      even = larger_magnitudes<T>(even, word[i]);
      odd = larger_magnitudes<T>(odd, word[i + 1]);
    }
    return larger_magnitudes<T>(even, odd);
  }
  // The larger magnitude in what largest_word gave, as the bits of a float; NaN is above infinity, and infinity above
  // all numbers.
  static __device__ std::uint32_t largest_of(std::uint32_t largest) {
    if constexpr (per_word == 1) {
      return largest & 0x7FFFFFFFu;
    } else {
      largest &= 0x7FFF7FFFu;
      largest = __vmaxu2(largest, largest >> 16);
      return fp32::bits(load_float(T::from_code(static_cast<std::uint16_t>(largest))));
    }
  }
  __device__ std::uint32_t largest_magnitude() const { return largest_of(largest_word()); }
  // Elements 8 * eighth ... + 7, also for a variable, without an index into registers, which would put them in memory.
  __device__ element_run<T, 8> select_eight(int eighth) const {
    auto run = slice<8>(0);
#pragma unroll
    for (int e = 1; e < N / 8; ++e) {
      const auto other = slice<8>(e);
#pragma unroll
      for (int i = 0; i < run.words; ++i) run.word[i] = e == eighth ? other.word[i] : run.word[i];
    }
    return run;
  }
  // Rarely wanted, so that short code matters more than fast code.
  __device__ void show_all(running_amax& amax) const {
#pragma unroll 1
    for (int e = 0; e < N / 8; ++e) {
      const auto run = select_eight(e);
#pragma unroll
      for (int i = 0; i < 8; ++i) amax.see(run.at(i));
    }
  }
  // The signs of elements 2 i and 2 i + 1, each in the top bit of its half.
  __device__ std::uint32_t sign_halves(int i) const {
    return (per_word == 1 ? __byte_perm(word[2 * i], word[2 * i + 1], 0x7632) : word[i]) & 0x80008000u;
  }
  // The signs of elements 8 * eighth ... + 7, each in the top bit of its nibble; other bits mean nothing.
  __device__ std::uint32_t sign_nibbles(int eighth) const {
    std::uint32_t even, odd;  // a byte of each element's sign
    if constexpr (per_word == 1) {
      const std::uint32_t* const w = word + 8 * eighth;
      even = __byte_perm(byte_signs(w[0], w[2], 0x00FB), byte_signs(w[4], w[6], 0x00FB), 0x5410);
      odd = __byte_perm(byte_signs(w[1], w[3], 0x00FB), byte_signs(w[5], w[7], 0x00FB), 0x5410);
    } else {
      const std::uint32_t* const w = word + 4 * eighth;
      const std::uint32_t a = __byte_perm(w[0], w[1], 0x7351), b = __byte_perm(w[2], w[3], 0x7351);
      even = byte_signs(a, b, 0xDC98);
      odd = byte_signs(a, b, 0xFEBA);
    }
    return select_bits(odd, even, 0xF0F0F0F0u);
  }
};

}  // namespace microscale::detail::device
