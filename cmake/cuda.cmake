# Whether tests, benchmarks and examples written in CUDA are built. Sets MICROSCALE_HAVE_CUDA and enables the language
# for this project alone: the library itself asks nothing of its users.
set(MICROSCALE_CUDA AUTO CACHE STRING "Build what needs nvcc: AUTO (when a working one is found), ON, OFF")
set_property(CACHE MICROSCALE_CUDA PROPERTY STRINGS AUTO ON OFF)

# GPU architectures to compile for: the first GPU's own where there is one, since that is where the programs will run;
# otherwise those whose code differs.
set(architectures "80-real;90a-real;100a-real;120a-real")
execute_process(
  COMMAND nvidia-smi --id=0 --query-gpu=compute_cap --format=csv,noheader
  OUTPUT_VARIABLE gpu
  OUTPUT_STRIP_TRAILING_WHITESPACE
  ERROR_QUIET
)
if(gpu MATCHES "^([0-9]+)\\.([0-9])$")
  set(architectures "${CMAKE_MATCH_1}${CMAKE_MATCH_2}")
  if(CMAKE_MATCH_1 GREATER_EQUAL 9)
    string(APPEND architectures "a") # with what this architecture alone has
  endif()
  string(APPEND architectures "-real")
endif()
set(MICROSCALE_CUDA_ARCHITECTURES "${architectures}" CACHE STRING "GPU architectures to compile for")
unset(architectures)
unset(gpu)

set(MICROSCALE_HAVE_CUDA OFF)
if(NOT MICROSCALE_CUDA)
  return()
endif()

# An nvcc on the PATH is CMake's own default; the toolkit's usual place is often not on the PATH.
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(microscale_nvcc nvcc PATHS /usr/local/cuda/bin)
  mark_as_advanced(microscale_nvcc)
  if(microscale_nvcc)
    set(CMAKE_CUDA_COMPILER "${microscale_nvcc}")
  endif()
endif()
set(CMAKE_CUDA_ARCHITECTURES "${MICROSCALE_CUDA_ARCHITECTURES}")

include(CheckLanguage)
check_language(CUDA)
if(CMAKE_CUDA_COMPILER)
  enable_language(CUDA)
  set(MICROSCALE_HAVE_CUDA ON)
elseif(NOT MICROSCALE_CUDA STREQUAL AUTO)
  message(FATAL_ERROR "MICROSCALE_CUDA=${MICROSCALE_CUDA}, but no working CUDA compiler was found")
endif()
