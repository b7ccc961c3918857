// A small thread pool. Work is handed out by index and every index writes only what it owns, so
// that no result depends on how many threads there are or on which of them did what.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace pretrain {

using index_t = std::ptrdiff_t;  // counts and offsets of elements

class thread_pool {
 public:
  explicit thread_pool(int threads) {
    try {
      for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { wait_for_work(); });
    } catch (const std::exception&) {
      // No more threads, or no memory for one: those that there are do the work.
    }
  }

  thread_pool(const thread_pool&) = delete;
  thread_pool& operator=(const thread_pool&) = delete;

  ~thread_pool() {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    work_ready_.notify_all();
    for (auto& worker : workers_) worker.join();
  }

  [[nodiscard]] int size() const noexcept { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(i) once for every i in [0, count), on any thread and in any order, and returns when
  // all are done. The first exception thrown by a body is rethrown here.
  void for_each(index_t count, const std::function<void(index_t)>& body) {
    if (workers_.empty() || count <= 1) {
      for (index_t i = 0; i < count; ++i) body(i);
      return;
    }
    {
      std::lock_guard lock(mutex_);
      body_ = &body;
      count_ = count;
      next_ = 0;
      busy_ = static_cast<int>(workers_.size());
      ++generation_;
    }
    work_ready_.notify_all();
    run(body, count);
    std::unique_lock lock(mutex_);
    work_done_.wait(lock, [this] { return busy_ == 0; });
    if (auto failure = std::exchange(failure_, nullptr)) std::rethrow_exception(failure);
  }

 private:
  void run(const std::function<void(index_t)>& body, index_t count) {
    try {
      for (index_t i = next_++; i < count; i = next_++) body(i);
    } catch (...) {
      next_ = count;
      std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
    }
  }

  void wait_for_work() {
    std::uint64_t seen = 0;
    std::unique_lock lock(mutex_);
    while (true) {
      work_ready_.wait(lock, [&] { return stopping_ || generation_ != seen; });
      if (stopping_) return;
      seen = generation_;
      const auto* body = body_;
      const index_t count = count_;
      lock.unlock();
      run(*body, count);
      lock.lock();
      if (--busy_ == 0) work_done_.notify_one();
    }
  }

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable work_ready_, work_done_;
  const std::function<void(index_t)>* body_ = nullptr;
  index_t count_ = 0;
  std::atomic<index_t> next_ = 0;
  int busy_ = 0;
  std::uint64_t generation_ = 0;
  bool stopping_ = false;
  std::exception_ptr failure_;
};

// Splits [0, size) into pieces of a fixed length and calls body(begin, end) for each.
template <class Body>
void for_each_piece(thread_pool& pool, index_t size, index_t piece, const Body& body) {
  pool.for_each((size + piece - 1) / piece, [&](index_t i) {
    const index_t begin = i * piece;
    body(begin, begin + piece < size ? begin + piece : size);
  });
}

}  // namespace pretrain
