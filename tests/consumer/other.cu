// A second translation unit with every header in it, as nvcc compiles them.
#include <microscale/microscale.cuh>

float largest_ue5m3() {
  volatile unsigned code = 0xFE;  // so that decode runs
  return microscale::ue5m3::decode(static_cast<microscale::ue5m3::storage>(code));
}
