// The program of a stranger: it prints what it was told by the library, from two translation units.
#include <cstdio>
#include <microscale/microscale.hpp>

float largest_ue5m3();  // other.cpp

int main() {
  namespace ms = microscale;
  static_assert(ms::e2m1::encode(2.5f) == 4);
  static_assert(ms::ue5m3::decode(0xFE) == 114688.0f);

  volatile float x = 2.5f;  // so that encode runs
  std::printf("microscale %d.%d.%d: e2m1(2.5) = %d, ue5m3(FE) = %.0f\n", ms::version_major, ms::version_minor,
              ms::version_patch, static_cast<int>(ms::e2m1::encode(x)), static_cast<double>(largest_ue5m3()));
}
