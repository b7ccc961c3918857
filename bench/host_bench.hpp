// What the host benchmarks of one-pass operations share: buffers, the baseline, names.
//
// Names are operation/scheme/backend/size. `l2` is 48K elements, which stay in a core's second-level cache with
// everything that is made of them; `dram` is 32M. One item is one element, bytes are those read and written. The data
// is roughly normal, the pages have been written, one thread does the work.
#pragma once

#include <benchmark/benchmark.h>

#include <cstdlib>
#include <cstring>
#include <microscale/host/executor.hpp>
#include <microscale/tensor/quantized.hpp>
#include <optional>
#include <string>
#include <vector>

#include "processors.hpp"

namespace bench {

namespace ms = microscale;

inline constexpr ms::host one_thread{.threads = 1};

struct size {
  const char* name;
  ms::index_t rows, cols;
};
inline constexpr size sizes[] = {{"l2", 192, 256}, {"dram", 8192, 4096}};

// Sums of four draws: enough like a normal distribution for branches and scales.
inline const float* input() {
  static const std::vector<float> data = [] {
    std::vector<float> x(static_cast<std::size_t>(sizes[1].rows * sizes[1].cols));
    for (std::size_t i = 0; i < x.size(); i += 4) {
      const ms::philox_words w = ms::philox4x32({1, 2}, i / 4);
      for (std::size_t j = 0; j < 4; ++j) {
        const std::uint32_t bytes = w.word[j];
        const int sum = static_cast<int>((bytes & 255) + (bytes >> 8 & 255) + (bytes >> 16 & 255) + (bytes >> 24));
        x[i + j] = static_cast<float>(sum - 510) * (1.0f / 128.0f);
      }
    }
    return x;
  }();
  return data.data();
}

template <class T>
const T* input_as() {
  static const std::vector<T> data = [] {
    std::vector<T> x;
    const std::size_t count = static_cast<std::size_t>(sizes[1].rows * sizes[1].cols);
    x.reserve(count);
    for (std::size_t i = 0; i < count; ++i) x.push_back(ms::from_float<T>(input()[i]));
    return x;
  }();
  return data.data();
}
template <>
inline const float* input_as<float>() {
  return input();
}

// The largest magnitude of the input.
inline constexpr float reference = 510.0f / 128.0f;

// Memory for results, written once.
inline float* output() {
  static std::vector<float> memory(static_cast<std::size_t>(sizes[1].rows * sizes[1].cols), 1.0f);
  return memory.data();
}

inline void count(benchmark::State& state, const size& s, double bytes_per_element) {
  const double elements = static_cast<double>(s.rows * s.cols) * static_cast<double>(state.iterations());
  state.SetItemsProcessed(static_cast<std::int64_t>(elements));
  state.SetBytesProcessed(static_cast<std::int64_t>(elements * bytes_per_element));
}

// Bytes that a stored element takes, its share of the scale included.
template <class S>
inline constexpr double stored_bytes = S::element::bits / 8.0 + 1.0 / S::block::elements;

template <class F>
benchmark::internal::Benchmark* add(const std::string& name, F&& f) {
  return benchmark::RegisterBenchmark(name.c_str(), f);
}

// libc's memcpy of as many floats, from the same memory to the same memory.
inline void add_memcpy() {
  for (const size& s : sizes) {
    add(std::string("memcpy/f32/host/") + s.name, [&s](benchmark::State& state) {
      const std::size_t bytes = static_cast<std::size_t>(s.rows * s.cols) * sizeof(float);
      const float* const from = input();
      float* const to = output();
      for (auto _ : state) {
        std::memcpy(to, from, bytes);
        benchmark::ClobberMemory();
      }
      count(state, s, 2.0 * sizeof(float));
    });
  }
}

template <class S>
ms::quantized<S>& stored(const size& s) {
  static ms::quantized<S> q[2] = {ms::quantized<S>(sizes[0].rows, sizes[0].cols),
                                  ms::quantized<S>(sizes[1].rows, sizes[1].cols)};
  return q[&s - sizes];
}

// Quantizing from T under a reference that is given.
template <class S, class T, class R>
void add_quantize(const std::string& operation, const std::string& scheme, R rounding, ms::axis along = ms::axis::row,
                  ms::host executor = one_thread) {
  for (const size& s : sizes) {
    const auto run = [&s, rounding, along, executor](benchmark::State& state) {
      std::optional<on_all_processors> everywhere;
      if (executor.threads != 1) everywhere.emplace();
      const T* const x = input_as<T>();
      const auto q = stored<S>(s).view();
      // Stored shape s.rows x s.cols, whichever way the blocks run.
      const auto in = along == ms::axis::row ? ms::matrix(x, s.rows, s.cols) : ms::matrix(x, s.cols, s.rows);
      for (auto _ : state) {
        ms::quantize_with(executor, in, q, rounding, {.axis = along, .reference = &reference});
        benchmark::ClobberMemory();
      }
      count(state, s, sizeof(T) + stored_bytes<S>);
    };
    auto* const added = add(operation + "/" + scheme + "/host/" + s.name, run);
    if (executor.threads != 1) added->UseRealTime();  // and not the time of the thread that waits for the others
  }
}

}  // namespace bench
