// The formats as the standards print them, for the walk.
#pragma once

#include "walk.hpp"

namespace exhaustive {

inline constexpr format e2m1{"e2m1", family::minifloat, 2, 1, 1, true, 0x7, 0x7};
inline constexpr format e1m2{"e1m2", family::minifloat, 1, 2, 1, true, 0x7, 0x7};
inline constexpr format e2m3{"e2m3", family::minifloat, 2, 3, 1, true, 0x1F, 0x1F};
inline constexpr format e3m2{"e3m2", family::minifloat, 3, 2, 3, true, 0x1F, 0x1F};
inline constexpr format e4m3{"e4m3", family::minifloat, 4, 3, 7, true, 0x7E, 0x7F};
inline constexpr format e5m2{"e5m2", family::minifloat, 5, 2, 15, true, 0x7B, 0x7C};
inline constexpr format ue4m3{"ue4m3", family::minifloat, 4, 3, 7, false, 0x7E, 0x7F};
inline constexpr format ue5m3{"ue5m3", family::minifloat, 5, 3, 15, false, 0xFE, 0xFF};
inline constexpr format ue5m3_ieee{"ue5m3_ieee", family::minifloat, 5, 3, 15, false, 0xF7, 0xF8};
inline constexpr format bf16{"bf16", family::minifloat, 8, 7, 127, true, 0x7F7F, 0x7F80};
inline constexpr format f16{"f16", family::minifloat, 5, 10, 15, true, 0x7BFF, 0x7C00};
inline constexpr format e8m0{"e8m0", family::power_of_two, 8, 0, 127, false, 0xFE, 0xFF};
inline constexpr format int4{"int4", family::fixed_point, 0, 2, 0, true, 7, 7};
inline constexpr format int8{"int8", family::fixed_point, 0, 6, 0, true, 127, 127};

}  // namespace exhaustive
