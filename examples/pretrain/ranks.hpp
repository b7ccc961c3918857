// The processes that train one model together, each on micro-batches of its own.
//
// Without MPI, and without a launcher such as mpirun, a process is alone and every call returns at once.
#pragma once

#include <span>

namespace pretrain {

class ranks {
 public:
  // Joins the processes that the launcher started. To be called once, before anything is printed.
  ranks();
  // Leaves them.
  ~ranks();
  ranks(const ranks&) = delete;
  ranks& operator=(const ranks&) = delete;

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int count() const noexcept { return count_; }
  [[nodiscard]] bool is_first() const noexcept { return rank_ == 0; }

  // What follows is collective: every rank calls it, and all get the same result.

  // The elementwise sum over all ranks, in their order: the same bits as one process adding up one after the other.
  void sum(std::span<float> values) const;
  void sum(std::span<double> values) const;

  [[nodiscard]] float maximum(float value) const;

  // Waits until every rank has come here.
  void meet() const;

  // Ends all of them, for a rank that cannot go on.
  [[noreturn]] static void abort(int code);

 private:
  int rank_ = 0;
  int count_ = 1;
};

// What a sampled amax goes through on its way into a reference.
struct maximum_over_ranks {
  const ranks* everyone;
  float operator()(float amax) const { return everyone->maximum(amax); }
};

}  // namespace pretrain
