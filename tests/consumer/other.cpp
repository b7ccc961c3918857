// A second translation unit with every header in it: what the library defines must be there once.
#include <microscale/microscale.hpp>

float largest_ue5m3() {
  volatile unsigned code = 0xFE;  // so that decode runs
  return microscale::ue5m3::decode(static_cast<microscale::ue5m3::storage>(code));
}
