// The maximum of a sampled amax over MPI ranks, for update_reference and linear. <mpi.h> is included here and nowhere
// else in the library; where there is none, this header is empty.
#pragma once

#if __has_include(<mpi.h>)

#include <mpi.h>

#include <string>

#include "../tensor/error.hpp"

namespace microscale {

// A collective: every rank of the communicator must call it at the same time, which ranks at the same step with equal
// reference states do. Blocks until all have.
struct mpi_maximum {
  MPI_Comm communicator = MPI_COMM_WORLD;

  float operator()(float amax) const {
    float largest = 0.0f;
    const int status = MPI_Allreduce(&amax, &largest, 1, MPI_FLOAT, MPI_MAX, communicator);
    if (status != MPI_SUCCESS) detail::fail("MPI_Allreduce", "success", "error " + std::to_string(status));
    return largest;
  }
};

}  // namespace microscale

#endif
