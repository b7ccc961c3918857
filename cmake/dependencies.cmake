# What tests and benchmarks stand on. An installed package is taken first; one that is not there is fetched at the
# version pinned here. The library itself depends on nothing.
set(MICROSCALE_FETCH AUTO CACHE STRING "Fetch dependencies: AUTO (those not installed), ON (all), OFF (none)")
set_property(CACHE MICROSCALE_FETCH PROPERTY STRINGS AUTO ON OFF)

include(FetchContent)

if(NOT MICROSCALE_FETCH)
  set(FETCHCONTENT_TRY_FIND_PACKAGE_MODE OPT_IN)
  set(required REQUIRED)
elseif(MICROSCALE_FETCH STREQUAL AUTO)
  set(FETCHCONTENT_TRY_FIND_PACKAGE_MODE OPT_IN)
else()
  set(FETCHCONTENT_TRY_FIND_PACKAGE_MODE NEVER)
endif()

if(MICROSCALE_BUILD_TESTS)
  FetchContent_Declare(
    Catch2
    GIT_REPOSITORY https://github.com/catchorg/Catch2.git
    GIT_TAG v3.7.1
    GIT_SHALLOW ON
    SYSTEM
    FIND_PACKAGE_ARGS 3.4 ${required}
  )
  FetchContent_MakeAvailable(Catch2)
endif()

if(MICROSCALE_BUILD_BENCH)
  set(BENCHMARK_ENABLE_TESTING OFF)
  FetchContent_Declare(
    benchmark
    GIT_REPOSITORY https://github.com/google/benchmark.git
    GIT_TAG v1.9.1
    GIT_SHALLOW ON
    SYSTEM
    FIND_PACKAGE_ARGS 1.7 ${required}
  )
  FetchContent_Declare(
    fmt
    GIT_REPOSITORY https://github.com/fmtlib/fmt.git
    GIT_TAG 11.0.2
    GIT_SHALLOW ON
    SYSTEM
    FIND_PACKAGE_ARGS 9 ${required}
  )
  FetchContent_MakeAvailable(benchmark fmt)
endif()

unset(required)

# What some tests and examples use where it is installed. Looked for once, since each look takes a second or two.
if(MICROSCALE_BUILD_TESTS)
  find_package(Python3 QUIET COMPONENTS Interpreter)
endif()
if(MICROSCALE_BUILD_TESTS OR MICROSCALE_BUILD_EXAMPLES)
  find_package(MPI QUIET COMPONENTS CXX)
endif()
