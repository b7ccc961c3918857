# The ways in which a test is added. A test is named by its kind and its subject (`unit.rounding`), and its kind is
# its first label: static unit property statistics report flags exhaustive conformance peers consumer device docs lint
# fuzz; `slow` may follow. The label `device` says that nvcc compiles it.

# Work that a test does in the build tree itself is done by one test at a time.
set(MICROSCALE_BUILD_TREE_LOCK build_tree)

# Turns `build this target` into a test, so that what must compile is counted and named like everything else.
function(microscale_add_build_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "TARGET" "LABELS")
  add_test(NAME ${name} COMMAND "${CMAKE_COMMAND}" --build "${PROJECT_BINARY_DIR}" --target ${arg_TARGET})
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}" RESOURCE_LOCK ${MICROSCALE_BUILD_TREE_LOCK})
endfunction()

# microscale_add_test(rounding LABELS unit SOURCES rounding_test.cpp [LIBRARIES …] [TIMEOUT seconds])
#
# One program of Catch2 test cases, run as one test.
function(microscale_add_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "TIMEOUT" "LABELS;SOURCES;LIBRARIES")
  list(GET arg_LABELS 0 kind)
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()

  add_executable(${kind}_${name} ${arg_SOURCES})
  target_link_libraries(${kind}_${name} PRIVATE microscale::microscale ${arg_LIBRARIES} Catch2::Catch2WithMain)
  add_test(NAME ${kind}.${name} COMMAND ${kind}_${name})
  set_tests_properties(${kind}.${name} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT})
endfunction()

# microscale_add_device_test(number SOURCES number_device_test.cu)
#
# A program compiled by nvcc, with a main of its own: it needs nothing but the CUDA runtime, so it can be carried to
# where a GPU is. It is left out where there is no nvcc, and counted as skipped where it says `no GPU here`. One runs at a
# time: each takes the whole GPU, and all cores for the definition's results.
function(microscale_add_device_test name)
  if(NOT MICROSCALE_HAVE_CUDA)
    return()
  endif()
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES")

  add_executable(device_${name} ${arg_SOURCES})
  target_link_libraries(device_${name} PRIVATE microscale::microscale)
  add_dependencies(device_programs device_${name})
  add_test(NAME device.${name} COMMAND device_${name})
  set_tests_properties(
    device.${name}
    PROPERTIES LABELS device TIMEOUT 300 SKIP_REGULAR_EXPRESSION "no GPU here" RESOURCE_LOCK gpu
  )
endfunction()

# microscale_add_static_test(formats SOURCES formats_static.cpp)
#
# Sources made of static_assert: that they compile is the test. Where there is an nvcc it compiles the very same sources
# as CUDA too, for one architecture, since no static_assert depends on it.
function(microscale_add_static_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES")

  add_library(static_${name} OBJECT ${arg_SOURCES})
  target_link_libraries(static_${name} PRIVATE microscale::microscale)
  microscale_add_build_test(static.${name} TARGET static_${name} LABELS static)

  if(MICROSCALE_HAVE_CUDA)
    set(cuda_sources)
    foreach(source IN LISTS arg_SOURCES)
      cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}")
      cmake_path(GET source STEM stem)
      file(CONFIGURE OUTPUT ${name}/${stem}.cu CONTENT "#include \"@source@\"\n" @ONLY)
      list(APPEND cuda_sources "${CMAKE_CURRENT_BINARY_DIR}/${name}/${stem}.cu")
    endforeach()
    list(GET MICROSCALE_CUDA_ARCHITECTURES 0 architecture)
    add_library(static_${name}_cuda OBJECT ${cuda_sources})
    set_target_properties(static_${name}_cuda PROPERTIES CUDA_ARCHITECTURES ${architecture})
    target_link_libraries(static_${name}_cuda PRIVATE microscale::microscale)
    add_dependencies(device_programs static_${name}_cuda)
    microscale_add_build_test(static.${name}.cuda TARGET static_${name}_cuda LABELS static device)
  endif()
endfunction()

# Everything that nvcc compiles, by one name.
if(MICROSCALE_HAVE_CUDA)
  add_custom_target(device_programs)
endif()
