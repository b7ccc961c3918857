# cmake -D REFERENCE=program -D CANDIDATE=program -D ENVIRONMENT=name -D WHAT=text [-D STARTS=flushed] -P compare.cmake
#
# Runs both programs, the reference in the default environment, and compares their checksums line by line. STARTS says
# how the candidate's process must have started, so that a build that was to flush subnormals is known to do so.
cmake_minimum_required(VERSION 3.25)

function(run out program environment)
  execute_process(
    COMMAND "${program}" ${environment}
    OUTPUT_VARIABLE text
    RESULT_VARIABLE status
  )
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${WHAT}: ${program} ${environment} ended with ${status}")
  endif()
  string(REGEX MATCHALL "[^\n]+" lines "${text}")
  set(${out} "${lines}" PARENT_SCOPE)
endfunction()

run(want "${REFERENCE}" default)
run(got "${CANDIDATE}" ${ENVIRONMENT})

if(DEFINED STARTS AND NOT "# started with subnormals ${STARTS}" IN_LIST got)
  message(FATAL_ERROR "${WHAT}: the program did not start with subnormals ${STARTS}")
endif()
list(FILTER want EXCLUDE REGEX "^#")
list(FILTER got EXCLUDE REGEX "^#")
if(NOT ENVIRONMENT STREQUAL "default")
  list(FILTER want INCLUDE REGEX "^whole ")
endif()

list(LENGTH want lines)
if(lines LESS 15)
  message(FATAL_ERROR "${WHAT}: only ${lines} checksums to compare")
endif()
set(differences)
foreach(line IN LISTS want)
  if(NOT line IN_LIST got)
    string(APPEND differences "  not the same: ${line}\n")
  endif()
endforeach()
list(LENGTH got printed)
if(differences OR NOT printed EQUAL lines)
  message(FATAL_ERROR "${WHAT}: ${printed} checksums for ${lines}\n${differences}")
endif()
message(STATUS "${WHAT}: ${lines} checksums are those of -O0 in the default environment")
