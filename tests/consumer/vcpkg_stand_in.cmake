# Runs cmake/packages/vcpkg/microscale/portfile.cmake with functions that do what vcpkg's own of the same name do for a
# library of headers. vcpkg itself downloads too much to be part of a test. SOURCE, WORK and CXX come from the command.
cmake_minimum_required(VERSION 3.25)

set(CURRENT_PORT_DIR "${SOURCE}/cmake/packages/vcpkg/microscale")
set(CURRENT_PACKAGES_DIR "${WORK}/packages")

function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY OUTPUT_QUIET)
endfunction()

function(vcpkg_cmake_configure)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "SOURCE_PATH" "OPTIONS")
  run("${CMAKE_COMMAND}" -S "${arg_SOURCE_PATH}" -B "${WORK}/build" "-DCMAKE_CXX_COMPILER=${CXX}"
    -DCMAKE_BUILD_TYPE=Release "-DCMAKE_INSTALL_PREFIX=${CURRENT_PACKAGES_DIR}" ${arg_OPTIONS}
  )
endfunction()

function(vcpkg_cmake_install)
  run("${CMAKE_COMMAND}" --install "${WORK}/build")
endfunction()

# Package files from where the library puts them to share/PORT, where vcpkg's users look.
function(vcpkg_cmake_config_fixup)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "CONFIG_PATH" "")
  file(GLOB files "${CURRENT_PACKAGES_DIR}/${arg_CONFIG_PATH}/*.cmake")
  if(NOT files)
    message(FATAL_ERROR "no package files in ${arg_CONFIG_PATH}")
  endif()
  file(MAKE_DIRECTORY "${CURRENT_PACKAGES_DIR}/share/microscale")
  foreach(file IN LISTS files)
    # One folder fewer lies between the file and the prefix.
    file(READ "${file}" content)
    string(REPLACE
      "get_filename_component(_IMPORT_PREFIX \"\${CMAKE_CURRENT_LIST_FILE}\" PATH)"
      "set(_IMPORT_PREFIX \"\${CMAKE_CURRENT_LIST_DIR}/unused\")" content "${content}"
    )
    cmake_path(GET file FILENAME name)
    file(WRITE "${CURRENT_PACKAGES_DIR}/share/microscale/${name}" "${content}")
  endforeach()
  file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/${arg_CONFIG_PATH}")
endfunction()

function(vcpkg_install_copyright)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "FILE_LIST")
  configure_file("${arg_FILE_LIST}" "${CURRENT_PACKAGES_DIR}/share/microscale/copyright" COPYONLY)
endfunction()

include("${CURRENT_PORT_DIR}/portfile.cmake")
