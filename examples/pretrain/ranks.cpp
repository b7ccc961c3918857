#include "ranks.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <stdexcept>
#include <vector>

#ifdef PRETRAIN_HAVE_MPI
#include <mpi.h>

#include <microscale/recipe/mpi.hpp>
#endif

namespace pretrain {

#ifdef PRETRAIN_HAVE_MPI

namespace {

// Whether a launcher started this process: Open MPI, MPICH and its kin, Slurm with either protocol.
bool is_launched() {
  return std::ranges::any_of(std::initializer_list<const char*>{"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"},
                             [](const char* name) { return std::getenv(name) != nullptr; });
}

template <class T>
void sum_in_order(std::span<T> values, MPI_Datatype type, int count) {
  // In pieces, so that the copies of all ranks stay small.
  constexpr std::size_t piece = 1 << 16;
  std::vector<T> all(std::min(piece, values.size()) * static_cast<std::size_t>(count));
  for (std::size_t begin = 0; begin < values.size(); begin += piece) {
    const std::span<T> part = values.subspan(begin, std::min(piece, values.size() - begin));
    const int length = static_cast<int>(part.size());
    if (MPI_Allgather(part.data(), length, type, all.data(), length, type, MPI_COMM_WORLD) != MPI_SUCCESS)
      throw std::runtime_error("MPI_Allgather failed");
    for (std::size_t i = 0; i < part.size(); ++i) {
      T sum = all[i];
      for (std::size_t rank = 1; rank < static_cast<std::size_t>(count); ++rank) sum += all[rank * part.size() + i];
      part[i] = sum;
    }
  }
}

}  // namespace

ranks::ranks() {
  if (!is_launched()) return;
  // Threads of the pool compute; this one alone communicates.
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &count_);
}

ranks::~ranks() {
  int is_initialized = 0;
  MPI_Initialized(&is_initialized);
  if (is_initialized) MPI_Finalize();
}

void ranks::sum(std::span<float> values) const {
  if (count_ > 1) sum_in_order(values, MPI_FLOAT, count_);
}

void ranks::sum(std::span<double> values) const {
  if (count_ > 1) sum_in_order(values, MPI_DOUBLE, count_);
}

float ranks::maximum(float value) const { return count_ > 1 ? microscale::mpi_maximum{}(value) : value; }

void ranks::meet() const {
  if (count_ > 1) MPI_Barrier(MPI_COMM_WORLD);
}

void ranks::abort(int code) {
  MPI_Abort(MPI_COMM_WORLD, code);
  std::abort();
}

#else

ranks::ranks() = default;
ranks::~ranks() = default;
void ranks::sum(std::span<float>) const {}
void ranks::sum(std::span<double>) const {}
float ranks::maximum(float value) const { return value; }
void ranks::meet() const {}
void ranks::abort(int code) { std::exit(code); }

#endif

}  // namespace pretrain
