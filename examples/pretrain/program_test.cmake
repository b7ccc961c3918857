cmake_minimum_required(VERSION 3.25)

# What the program promises on its command line: exit codes, one clear line, nothing written after a refusal, and the
# same numbers from the same seed on any number of threads. Called with -D PROGRAM=… TEXT=… DIRECTORY=….
file(REMOVE_RECURSE "${DIRECTORY}")
file(MAKE_DIRECTORY "${DIRECTORY}")
file(WRITE "${DIRECTORY}/empty" "")
file(WRITE "${DIRECTORY}/short" "int main() {}\n")
set(out "${DIRECTORY}/refused")

function(refuse expected)
  execute_process(
    COMMAND "${PROGRAM}" --out "${out}" ${ARGN}
    RESULT_VARIABLE code
    OUTPUT_VARIABLE output
    ERROR_VARIABLE error
  )
  if(NOT code EQUAL 2)
    message(SEND_ERROR "${ARGN}: exit code ${code} instead of 2")
  endif()
  if(NOT error MATCHES "^pretrain: [^\n]*${expected}[^\n]*\n$" OR NOT output STREQUAL "")
    message(SEND_ERROR "${ARGN}: expected one line with '${expected}', got '${output}${error}'")
  endif()
  if(EXISTS "${out}")
    message(SEND_ERROR "${ARGN}: something was written")
  endif()
endfunction()

refuse("--colour" --colour)
refuse("unknown option" extra)
refuse("value is missing" --steps)
refuse("whole number" --steps 0)
refuse("whole number" --steps 12x)
refuse("whole number" --seed -1)
refuse("unknown recipe 'fp3'" --recipe bf16,fp3)
refuse("unknown recipe ''" --recipe bf16,)
refuse("named twice" --recipe bf16,bf16)
refuse("no file" --text "${DIRECTORY}/missing")
refuse("directory" --text "${DIRECTORY}")
refuse("empty" --text "${DIRECTORY}/empty")
refuse("less than one context" --text "${DIRECTORY}/short")

function(succeed)
  execute_process(COMMAND "${PROGRAM}" ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE error)
  if(NOT code EQUAL 0 OR NOT error STREQUAL "")
    message(SEND_ERROR "${ARGN}: exit code ${code}, '${error}'")
  endif()
endfunction()

succeed(--help)
foreach(threads 1 3)
  succeed(--text "${TEXT}" --steps 2 --seed 7 --threads ${threads} --out "${DIRECTORY}/${threads}")
endforeach()
file(GLOB files RELATIVE "${DIRECTORY}/1" "${DIRECTORY}/1/*")
foreach(name curves.csv curves.svg table.md weights-bf16.safetensors)
  if(NOT name IN_LIST files)
    message(SEND_ERROR "${name} was not written")
  endif()
endforeach()
list(REMOVE_ITEM files table.md) # it tells the speed, too
foreach(name IN LISTS files)
  file(SHA256 "${DIRECTORY}/1/${name}" one)
  file(SHA256 "${DIRECTORY}/3/${name}" three)
  if(NOT one STREQUAL three)
    message(SEND_ERROR "${name} depends on the number of threads")
  endif()
endforeach()
