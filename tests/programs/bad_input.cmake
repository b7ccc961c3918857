# cmake -DRUNNER=… -DPYTHON=… -DROOT=… -DSCRATCH=… -P bad_input.cmake
cmake_minimum_required(VERSION 3.25)

set(outside "${SCRATCH}_given")
file(REMOVE_RECURSE "${outside}")
file(MAKE_DIRECTORY "${outside}")
file(WRITE "${outside}/empty" "")
file(WRITE "${outside}/text" "this is no vector file\n")
string(REPEAT "microscale-vectors 1 id=" 4000 long)
file(WRITE "${outside}/long" "microscale-vectors 1\n${long}\n")
set(given "${outside}/empty" "${outside}/text" "${outside}/long" "${outside}" "${outside}/nowhere")

# Runs a command where there is nothing, expects it to refuse, and `says` (a regular expression) in its last line.
set(refused 0)
function(refuses says)
  file(REMOVE_RECURSE "${SCRATCH}")
  file(MAKE_DIRECTORY "${SCRATCH}")
  execute_process(
    COMMAND ${ARGN}
    WORKING_DIRECTORY "${SCRATCH}"
    RESULT_VARIABLE code
    OUTPUT_VARIABLE out
    ERROR_VARIABLE err
    TIMEOUT 30
  )
  string(JOIN " " command ${ARGN})
  # A signal is a word here, not a number.
  if(NOT code MATCHES "^[0-9]+$" OR code EQUAL 0 OR code GREATER 125)
    message(SEND_ERROR "${command}: exit status ${code}\n${out}${err}")
  endif()
  string(STRIP "${out}${err}" said)
  string(REGEX REPLACE ".*\n" "" last "${said}")
  string(LENGTH "${last}" length)
  if(NOT last MATCHES "${says}" OR length GREATER 300)
    message(SEND_ERROR "${command}: expected '${says}' in one line of at most 300 characters, got:\n${last}")
  endif()
  string(REGEX MATCHALL "\n" lines "${said}")
  list(LENGTH lines lines)
  if(said MATCHES "Traceback|terminate called|unbound variable|core dumped" OR (lines GREATER 20))
    message(SEND_ERROR "${command}: this is no message for a person:\n${said}")
  endif()
  file(GLOB written "${SCRATCH}/*" "${SCRATCH}/.*")
  if(written)
    message(SEND_ERROR "${command}: wrote ${written}")
  endif()
  math(EXPR count "${refused} + 1")
  set(refused ${count} PARENT_SCOPE)
endfunction()

refuses("^usage: " "${RUNNER}")
foreach(file IN LISTS given)
  refuses("^${file}(:[0-9]+)?: " "${RUNNER}" "${file}")
endforeach()

refuses("passed, N failed" bash "${ROOT}/tests/run" --bogus)
refuses("usage: " bash "${ROOT}/tests/consumer/consume")
refuses("usage: " bash "${ROOT}/tests/consumer/consume" bogus "${ROOT}" elsewhere)
if(PYTHON)
  refuses("No such file" "${PYTHON}" "${ROOT}/docs/check_snippets" "${outside}/nowhere")
  refuses("No such file" "${PYTHON}" "${ROOT}/cmake/check_includes" "${outside}/nowhere")
  refuses("generate.py check" "${PYTHON}" "${ROOT}/tests/conformance/generate.py" bogus)
  refuses("tests/peers/run .*FOLDER$" "${PYTHON}" "${ROOT}/tests/peers/run" bogus)
  refuses("error: layers that can be run here" "${PYTHON}" "${ROOT}/tests/mutate" --layers cuda)
  refuses("error: argument --count" "${PYTHON}" "${ROOT}/tests/mutate" --count many)
  refuses("error: no such line" "${PYTHON}" "${ROOT}/tests/mutate" --only nowhere.hpp:1)
  refuses("error: .*--only" "${PYTHON}" "${ROOT}/tests/mutate" --only nowhere)
  refuses("error: " "${PYTHON}" "${ROOT}/examples/pretrain/compare" bogus)
endif()
message(STATUS "${refused} commands refused")
