// The same tests compiled with -ffast-math.
#include "fp32_test.cpp"
