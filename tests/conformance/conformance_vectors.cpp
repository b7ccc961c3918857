// conformance_vectors FILE...: runs vector files against the library on the host and says, case by case, what differs.
// Ends with `N passed, N failed, N skipped`; exit status 1 if any case failed, 2 if a file is malformed.
#include "host_executor.hpp"
#include "runner.hpp"

int main(int argc, char** argv) {
  return conformance::run_files<conformance::host_executor>(std::vector<const char*>(argv + 1, argv + argc));
}
