# cmake -P cmake/check_headers.cmake: does cmake/headers.cmake list exactly the headers under include/, layer by layer,
# and does each of them include only headers listed before it?
cmake_minimum_required(VERSION 3.25)

set(layers number block tensor host cuda recipe interop conformance)

cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH root)
include("${CMAKE_CURRENT_LIST_DIR}/headers.cmake")

# The list against the tree.
file(GLOB_RECURSE headers_in_tree LIST_DIRECTORIES false RELATIVE "${root}" "${root}/include/*")
foreach(header IN LISTS headers_in_tree)
  if(NOT header IN_LIST microscale_headers)
    message(SEND_ERROR "cmake/headers.cmake does not list ${header}")
  endif()
endforeach()

# The order of the list, and the includes against it.
set(listed)
set(layer_before 0)
foreach(header IN LISTS microscale_headers)
  if(NOT header IN_LIST headers_in_tree)
    message(SEND_ERROR "cmake/headers.cmake lists ${header}, which is not there")
    continue()
  endif()
  if(header IN_LIST listed)
    message(SEND_ERROR "cmake/headers.cmake lists ${header} twice")
  endif()

  cmake_path(GET header PARENT_PATH folder)
  if(NOT folder STREQUAL "include/microscale")
    cmake_path(GET folder FILENAME layer)
    list(FIND layers "${layer}" layer_here)
    if(layer_here LESS layer_before)
      message(SEND_ERROR "${header} is listed after headers of a higher layer, or is in none of: ${layers}")
    endif()
    set(layer_before ${layer_here})
  endif()

  file(STRINGS "${root}/${header}" includes REGEX "^ *# *include *([\"]|<microscale/)")
  foreach(line IN LISTS includes)
    string(REGEX REPLACE "^ *# *include *[\"<]([^\">]*).*" "\\1" included "${line}")
    if(line MATCHES "<")
      set(included "include/${included}")
    else()
      cmake_path(ABSOLUTE_PATH included BASE_DIRECTORY "/${folder}" NORMALIZE)
      string(SUBSTRING "${included}" 1 -1 included)
    endif()
    if(NOT included IN_LIST listed)
      message(SEND_ERROR "${header} includes ${included}, which is not listed before it")
    endif()
  endforeach()

  list(APPEND listed ${header})
endforeach()

list(LENGTH listed count)
message(STATUS "${count} headers listed")
