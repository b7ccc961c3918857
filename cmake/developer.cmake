# How this project compiles its own tests, benchmarks and examples. Included after the dependencies, which are compiled
# as their authors meant; consumers of the library never see any of it.
set(CMAKE_CXX_EXTENSIONS OFF)

# C++20 for nvcc by its flag: CMake 3.25 knows no other way, and the library's target may not ask for a CUDA standard,
# which CMake refuses in projects without CUDA.
add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:-std=c++20>")

if(MICROSCALE_WARNINGS_AS_ERRORS)
  add_compile_options(
    "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Wconversion;-Wshadow;-Werror>"
    "$<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings;-Xcompiler=-Wall,-Wextra,-Wconversion,-Wshadow,-Werror>"
  )
endif()
