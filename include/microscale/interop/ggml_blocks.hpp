// ggml's blocks MXFP4 and NVFP4, as GGUF files hold them.
//
//   MXFP4  32 elements in 17 bytes: an E8M0 scale, then 16 bytes whose low nibbles are elements 0-15 and high 16-31
//   NVFP4  64 elements in 36 bytes: four UE4M3 scales, then for each 16 elements 8 bytes, low nibbles 0-7, high 8-15
//
// ggml d99724f: it keeps elements doubled and scales halved, which changes no value. Its NVFP4 has no tensor scale of
// its own; llama.cpp keeps one, a multiplier, in a tensor beside it ("NAME.scale").
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>

#include "checkpoint.hpp"

namespace microscale::interop {

// The schemes whose tensors fit into ggml blocks.
template <class S>
concept ggml_like = nvfp4_like<S> ||(mx_like<S>&& std::is_same_v<typename S::element, e2m1>);

// Which of the two blocks holds S.
template <ggml_like S>
inline constexpr stored_type ggml_type_of = nvfp4_like<S> ? stored_type::ggml_nvfp4 : stored_type::ggml_mxfp4;

namespace detail {

template <class S>
struct ggml_block {
  static constexpr int run = S::block::columns;             // elements under one scale: 16 or 32
  static constexpr int elements = nvfp4_like<S> ? 64 : 32;  // of a block
  static constexpr int scales = elements / run;
  static constexpr int bytes = scales + elements / 2;
};

template <class S>
void check_ggml_columns(index_t cols) {
  if (cols % ggml_block<S>::elements != 0) {
    microscale::detail::fail("columns of ggml blocks", "a multiple of " + std::to_string(ggml_block<S>::elements),
                             std::to_string(cols));
  }
}

}  // namespace detail

// How many bytes a rows x cols matrix takes.
template <ggml_like S>
constexpr index_t ggml_bytes(index_t rows, index_t cols) noexcept {
  return rows * (cols / detail::ggml_block<S>::elements) * detail::ggml_block<S>::bytes;
}

// A quantized matrix as ggml blocks, to ggml_bytes() bytes. The tensor scale is not among them: see
// modelopt_multiplier(). Throws ms::error for rows that are not whole blocks, and for a NaN scale, which ggml reads as
// a number (E8M0 as 2^128, UE4M3 as 0).
template <ggml_like S>
void to_ggml_blocks(quantized_view<const S> q, std::uint8_t* out) {
  using block = detail::ggml_block<S>;
  microscale::detail::check_quantized("quantized matrix", q);
  detail::check_ggml_columns<S>(q.cols);
  for (index_t r = 0; r < q.rows; ++r) {
    for (index_t k = 0; k < q.cols; k += block::elements, out += block::bytes) {
      for (int i = 0; i < block::scales; ++i) {
        const std::uint8_t scale = q.scale(r, k + i * block::run);
        if (S::scale::is_nan(scale)) microscale::detail::fail("block scale for ggml", "a number", "NaN");
        out[i] = scale;
        std::uint8_t* nibbles = out + block::scales + i * block::run / 2;
        for (int j = 0; j < block::run / 2; ++j) {
          const unsigned low = q.code(r, k + i * block::run + j),
                         high = q.code(r, k + i * block::run + block::run / 2 + j);
          nibbles[j] = static_cast<std::uint8_t>(low | high << 4);
        }
      }
    }
  }
}

// The inverse. `datum` is what the scheme stores of the tensor scale. Throws ms::error for bytes that are not of this
// shape, and for scales that the format has not: E8M0 0xFF, which ggml reads as 2^128, and UE4M3 with bit 7 set, which
// it passes over. UE4M3 0x7F, a zero to ggml, becomes 0x00.
template <ggml_like S>
requires(S::block::rows == 1) quantized<S> from_ggml_blocks(std::span<const std::uint8_t> in, index_t rows,
                                                            index_t cols, float datum = 1.0f) {
  using block = detail::ggml_block<S>;
  detail::check_ggml_columns<S>(cols);
  microscale::detail::countable("shape of ggml blocks", rows, cols);
  if (in.size() != static_cast<std::size_t>(ggml_bytes<S>(rows, cols))) {
    microscale::detail::fail("ggml blocks", std::to_string(ggml_bytes<S>(rows, cols)) + " bytes",
                             std::to_string(in.size()));
  }
  quantized<S> q(rows, cols);
  const quantized_view<S> out = q.view();
  *out.datum = datum;
  const std::uint8_t* from = in.data();
  for (index_t r = 0; r < rows; ++r) {
    for (index_t k = 0; k < cols; k += block::elements, from += block::bytes) {
      for (int i = 0; i < block::scales; ++i) {
        std::uint8_t scale = from[i];
        if (nvfp4_like<S> && scale == 0x7F) scale = 0;
        if (S::scale::is_nan(scale) || (nvfp4_like<S> && scale >= 0x80)) {
          microscale::detail::fail("block scale of ggml", "a number of the format", std::to_string(scale));
        }
        out.scales[out.scale_offset(r, (k + i * block::run) / block::run)] = scale;
        const std::uint8_t* nibbles = from + block::scales + i * block::run / 2;
        std::uint8_t codes[block::run] = {};
        for (int j = 0; j < block::run / 2; ++j) {
          codes[j] = nibbles[j] & 0xF;
          codes[block::run / 2 + j] = nibbles[j] >> 4;
        }
        store_codes<e2m1>(out.codes + r * out.code_pitch + (k + i * block::run) / 2, codes, block::run);
      }
    }
  }
  return q;
}

}  // namespace microscale::interop
