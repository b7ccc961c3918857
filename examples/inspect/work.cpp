#include "work.hpp"

#include <microscale/number/fp32.hpp>
#include <microscale/tensor/quantize.hpp>

#include <unistd.h>

#include <algorithm>
#include <iostream>

namespace inspect {

namespace {

// The numbers of a tile: in the file itself where they lie there as floats, else in `memory`.
ms::matrix_view<const float> numbers_of(const item& it, const tile& t, std::vector<float>& memory) {
  const auto& tensor = *it.parts.front();
  const bool in_place = it.stored == storage::plain && tensor.type == ms::interop::stored_type::f32 &&
                        reinterpret_cast<std::uintptr_t>(tensor.bytes.data()) % alignof(float) == 0;
  if (in_place) {
    const auto* data = reinterpret_cast<const float*>(tensor.bytes.data());
    return ms::matrix(data + t.row * it.cols + t.col, t.rows, t.cols, it.cols);
  }
  memory.resize(std::max(memory.size(), static_cast<std::size_t>(t.rows * t.cols)));
  it.load(t.row, t.rows, t.col, t.cols, memory.data());
  return ms::matrix(static_cast<const float*>(memory.data()), t.rows, t.cols);
}

// f(tile, its index, memory of the thread) for every tile. Of a large tensor, what was read is given back at once, so
// that memory stays flat.
template <class F>
void for_tiles(const ms::host& on, const item& it, const std::vector<tile>& tiles, F&& f) {
  constexpr std::size_t large = std::size_t{1} << 26;
  const auto bytes = it.parts.front()->bytes;
  const std::size_t row = bytes.size() / static_cast<std::size_t>(it.rows);
  on.for_ranges(static_cast<index_t>(tiles.size()), index_t{1} << 18, [&](index_t first, index_t last) {
    scratch memory;
    for (index_t i = first; i < last; ++i) {
      const tile& t = tiles[static_cast<std::size_t>(i)];
      f(t, static_cast<std::size_t>(i), memory);
      if (bytes.size() < large || t.cols != it.cols) continue;
      ms::interop::release_pages(
          bytes.subspan(row * static_cast<std::size_t>(t.row), row * static_cast<std::size_t>(t.rows)));
    }
  });
}

}  // namespace

std::vector<tile> tiles_of(index_t rows, index_t cols) {
  // 64 is a multiple of the width of every block, also of ggml's, and 32 of every height. So much stays in a core's
  // cache while one scheme after the other goes over it.
  constexpr index_t numbers = 1 << 18, step = 32;
  const index_t wide = std::min(cols, numbers);
  const index_t tall = std::max(step, numbers / std::max(wide, index_t{1}) / step * step);
  std::vector<tile> tiles;
  for (index_t row = 0; row < rows; row += tall) {
    for (index_t col = 0; col < cols; col += wide) {
      tiles.push_back({row, std::min(tall, rows - row), col, std::min(wide, cols - col)});
    }
  }
  return tiles;
}

progress::progress(std::string what, std::uint64_t total)
    : what_(std::move(what)), total_(std::max<std::uint64_t>(total, 1)), on_terminal_(isatty(STDERR_FILENO) == 1) {}

progress::~progress() {
  if (shown_ >= 0) std::cerr << "\r\033[K" << std::flush;
}

void progress::add(std::uint64_t done) {
  done_ += done;
  const int percent = static_cast<int>(static_cast<double>(done_) / static_cast<double>(total_) * 100.0);
  if (!on_terminal_ || percent == shown_) return;
  shown_ = percent;
  std::cerr << '\r' << what_ << ' ' << percent << "%" << std::flush;
}

namespace {

// The largest magnitude that is finite.
float finite_amax(ms::matrix_view<const float> x) {
  const float amax = ms::amax(ms::host{.threads = 1}, x);
  if (ms::fp32::is_finite(amax)) return amax;
  std::uint32_t largest = 0;
  for (index_t r = 0; r < x.rows; ++r) {
    for (index_t c = 0; c < x.cols; ++c) {
      const std::uint32_t m = ms::fp32::magnitude_bits(x(r, c));
      if (m < ms::fp32::infinity_bits) largest = std::max(largest, m);
    }
  }
  return ms::fp32::from_bits(largest);
}

void count_exponents(ms::matrix_view<const float> x, exponent_histogram& bins) {
  for (index_t r = 0; r < x.rows; ++r) {
    for (index_t c = 0; c < x.cols; ++c) ++bins[ms::fp32::magnitude_bits(x(r, c)) >> 23];
  }
}

}  // namespace

float find_amax(const ms::host& on, const item& it, exponent_histogram* bins) {
  const auto tiles = tiles_of(it.rows, it.cols);
  std::vector<float> largest(tiles.size(), 0.0f);
  std::vector<exponent_histogram> counts(bins != nullptr ? tiles.size() : 0);
  for_tiles(on, it, tiles, [&](const tile& t, std::size_t i, scratch& memory) {
    const auto x = numbers_of(it, t, memory.numbers);
    largest[i] = finite_amax(x);
    if (bins != nullptr) count_exponents(x, counts[i]);
  });
  for (const exponent_histogram& part : counts) add_to(*bins, part);
  return largest.empty() ? 0.0f : std::ranges::max(largest);
}

std::vector<measured_scheme> measure(const ms::host& on, const item& it, std::span<const scheme* const> schemes,
                                     float amax, bool with_scales) {
  const auto tiles = tiles_of(it.rows, it.cols);
  std::vector<measured_scheme> sums(schemes.size());
  std::vector<ms::quantization_metrics> parts(tiles.size() * schemes.size());
  std::vector<scale_histogram> counts(with_scales ? parts.size() : 0);
  for_tiles(on, it, tiles, [&](const tile& t, std::size_t i, scratch& memory) {
    const auto x = numbers_of(it, t, memory.numbers);
    for (std::size_t j = 0; j < schemes.size(); ++j) {
      const std::size_t at = i * schemes.size() + j;
      parts[at] = schemes[j]->measure(x, amax, memory, with_scales ? &counts[at] : nullptr);
      parts[at].worst_row += t.row;
      parts[at].worst_col += t.col;
    }
  });
  // In the order of the tiles, so that no figure depends on how many threads there were.
  for (std::size_t at = 0; at < parts.size(); ++at) sums[at % schemes.size()].metrics += parts[at];
  for (std::size_t at = 0; at < counts.size(); ++at) add_to(sums[at % schemes.size()].scales, counts[at]);
  return sums;
}

}  // namespace inspect
