// The same tests compiled with -ffast-math, which must change no bit of any scheme. The model is compiled without.
#include "schemes_test.cpp"
