// References that are the maximum over MPI ranks: a program of its own, started by mpiexec with two ranks or more,
// where there is an MPI.
#include <microscale/recipe/mpi.hpp>

#include <cstdio>
#include <microscale/recipe/linear.hpp>
#include <microscale/recipe/recipes.hpp>
#include <vector>

namespace ms = microscale;

namespace {

constexpr int n = 32;
using matrix = std::vector<float>;

ms::matrix_view<const float> view(const matrix& m) { return ms::matrix(m.data(), n, n); }

// What `rank` sees: its largest activation is 6 + 10 rank, its largest gradient 1 / (1 + rank); weights are shared.
matrix activations(int rank) {
  matrix x(n * n);
  for (int i = 0; i < n * n; ++i) x[static_cast<std::size_t>(i)] = static_cast<float>(i % 7 + 10 * rank);
  return x;
}

// One forward and one backward pass a step, through `reduce`.
template <class Layer, class Reduce>
void train(Layer& layer, int rank, int steps, const Reduce& reduce) {
  const matrix x = activations(rank), w(n * n, 0.5f), dy(n * n, 1.0f / static_cast<float>(1 + rank));
  matrix y(n * n), dx(n * n), dw(n * n);
  for (int step = 1; step <= steps; ++step) {
    const ms::training_step at{.step = step};
    layer.forward(ms::sequential{}, at, view(x), view(w), ms::matrix(y, n, n), reduce);
    layer.backward(ms::sequential{}, at, view(dy), ms::matrix(dx, n, n), ms::matrix(dw, n, n), reduce);
  }
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, ranks = 0, failures = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const auto check = [&](bool holds, const char* what) {
    if (!holds) {
      std::printf("rank %d: %s\n", rank, what);
      ++failures;
    }
  };
  check(ranks >= 2, "there are not two ranks");

  int calls = 0;
  const ms::mpi_maximum maximum{MPI_COMM_WORLD};
  const auto counted = [&](float amax) {
    ++calls;
    return maximum(amax);
  };
  ms::linear<ms::recipes::ue5m3> layer(n, n, {.count = 4});
  train(layer, rank, 52, counted);
  check(layer.state().activation.amax == 6.0f + 10.0f * static_cast<float>(ranks - 1), "the largest X of all ranks");
  check(layer.state().weight.amax == 0.5f, "the shared W");
  check(layer.state().output_gradient.amax == 1.0f, "the largest dY of all ranks");
  check(layer.state().activation.sampled_step == 51, "sampled at steps 1 and 51");
  check(calls == 6, "one collective for each of X, W and dY at the two sampling steps, and none between");

  // An infinity on one rank is an error on all of them, so that none waits for the others.
  ms::reference_state state;
  matrix bad(n * n, 1.0f);
  if (rank == ranks - 1) bad[7] = ms::fp32::infinity();
  bool threw = false;
  try {
    ms::update_reference(ms::periodic_scaling{}, state, ms::sequential{}, 1, view(bad), maximum);
  } catch (const ms::error&) {
    threw = true;
  }
  check(threw && state == ms::reference_state{}, "an infinite amax of another rank");

  int all = 0;
  MPI_Allreduce(&failures, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Finalize();
  return all == 0 ? 0 : 1;
}
