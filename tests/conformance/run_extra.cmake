# cmake -DRUNNER=… [-DPYTHON=…] [-DVECTORS=…] -P run_extra.cmake: runs vector files that are not part of this project.
#
# VECTORS, or the environment variable MICROSCALE_EXTRA_VECTORS, names a file or a folder of *.vec. Every case must
# pass, and none may be skipped. With PYTHON, oracle.py has to agree with them too.
cmake_minimum_required(VERSION 3.25)

if(NOT VECTORS)
  set(VECTORS "$ENV{MICROSCALE_EXTRA_VECTORS}")
endif()
if(NOT VECTORS)
  message("no extra vectors: set MICROSCALE_EXTRA_VECTORS to a file or a folder of them")
  return()
endif()

if(IS_DIRECTORY "${VECTORS}")
  file(GLOB files "${VECTORS}/*.vec")
else()
  set(files "${VECTORS}")
endif()
if(NOT files)
  message(FATAL_ERROR "${VECTORS} holds no *.vec")
endif()

execute_process(COMMAND "${RUNNER}" ${files} RESULT_VARIABLE status OUTPUT_VARIABLE out ERROR_VARIABLE err)
message("${out}${err}")
if(NOT status EQUAL 0 OR NOT out MATCHES "\n?[0-9]+ passed, 0 failed, 0 skipped\n$")
  message(SEND_ERROR "the runner: exit status ${status}")
endif()

if(PYTHON)
  execute_process(COMMAND "${PYTHON}" "${CMAKE_CURRENT_LIST_DIR}/oracle.py" check ${files} RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    message(SEND_ERROR "oracle.py: exit status ${status}")
  endif()
endif()
