cmake_minimum_required(VERSION 3.25)

# What the program promises on its command line: exit codes, one clear line, nothing written after a refusal, and the
# same numbers from the same seed on any number of threads, in one go, stopped, or killed and resumed.
#
# Called with -D PROGRAM=… TEXT=… DIRECTORY=…, and with LAUNCHER=mpiexec;-n;2 for what two ranks promise instead.
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

# The same of a run that should go on; here the program may have said what it is about to do.
function(refuse_to_resume expected run)
  execute_process(
    COMMAND "${PROGRAM}" --resume "${run}"
    RESULT_VARIABLE code
    OUTPUT_QUIET
    ERROR_VARIABLE error
  )
  if(NOT code EQUAL 2 OR NOT error MATCHES "^pretrain: [^\n]*${expected}[^\n]*\n$")
    message(SEND_ERROR "--resume ${run}: expected exit code 2 and one line with '${expected}', got ${code}, '${error}'")
  endif()
endfunction()

function(succeed)
  execute_process(COMMAND ${LAUNCHER} "${PROGRAM}" ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE error)
  if(NOT code EQUAL 0 OR NOT error STREQUAL "")
    message(SEND_ERROR "${ARGN}: exit code ${code}, '${error}'")
  endif()
endfunction()


# Two runs left the same numbers: all files but the table, which tells the speed, and those for --resume, which tell the
# time.
function(expect_same one other)
  file(GLOB files RELATIVE "${DIRECTORY}/${one}" "${DIRECTORY}/${one}/*")
  foreach(name curves.csv curves.svg ${ARGN})
    if(NOT name IN_LIST files)
      message(SEND_ERROR "${one}: ${name} was not written")
    endif()
  endforeach()
  list(FILTER files INCLUDE REGEX "^(curves|weights)")
  foreach(name IN LISTS files)
    file(SHA256 "${DIRECTORY}/${one}/${name}" first)
    file(SHA256 "${DIRECTORY}/${other}/${name}" second)
    if(NOT first STREQUAL second)
      message(SEND_ERROR "${name} differs between ${one} and ${other}")
    endif()
  endforeach()
endfunction()

if(LAUNCHER)
  # Each rank computes its own micro-batch with the draws that it has in one process, and sums are taken in the order of
  # ranks: where every micro-batch takes its own amax, two ranks are one that accumulates.
  set(run --text "${TEXT}" --steps 3 --seed 7 --threads 1)
  succeed(${run} --recipe bf16,nvfp4 --out "${DIRECTORY}/ranks")
  set(launcher ${LAUNCHER})
  set(LAUNCHER "")
  succeed(${run} --recipe bf16,nvfp4 --accumulate 2 --out "${DIRECTORY}/accumulated")
  expect_same(ranks accumulated weights-bf16.safetensors weights-nvfp4.safetensors)
  # Held references are the maximum over ranks, and come back from a checkpoint.
  set(LAUNCHER ${launcher})
  succeed(${run} --recipe ue5m3 --out "${DIRECTORY}/whole")
  succeed(${run} --recipe ue5m3 --stop-at 2 --out "${DIRECTORY}/stopped")
  succeed(--resume "${DIRECTORY}/stopped")
  expect_same(whole stopped weights-ue5m3.safetensors)
  return()
endif()

refuse("--colour" --colour)
refuse("unknown option" extra)
refuse("value is missing" --steps)
refuse("whole number" --steps 0)
refuse("whole number" --steps 12x)
refuse("whole number" --seed -1)
refuse("whole number" --threads 0)
refuse("whole number" --accumulate 0)
refuse("whole number" --checkpoint 0)
refuse("step of the run, 1 to 10" --steps 10 --stop-at 11)
refuse("--resume: recipes, steps" --resume "${DIRECTORY}")
refuse("unknown recipe 'fp3'" --recipe bf16,fp3)
refuse("unknown recipe ''" --recipe bf16,)
refuse("named twice" --recipe bf16,bf16)
refuse("no file" --text "${DIRECTORY}/missing")
refuse("directory" --text "${DIRECTORY}")
refuse("empty" --text "${DIRECTORY}/empty")
refuse("less than one context" --text "${DIRECTORY}/short")

succeed(--help)
succeed(--list)
set(run --text "${TEXT}" --steps 3 --seed 7)

foreach(threads 1 3)
  succeed(${run} --threads ${threads} --out "${DIRECTORY}/threads-${threads}")
endforeach()
expect_same(threads-1 threads-3 weights-bf16.safetensors weights-nvfp4.safetensors weights-ue5m3.safetensors table.md)

# Every kind of state: held references, fixed ones, none, draws for transforms and scales; and gradients of several
# micro-batches.
set(run ${run} --accumulate 2 --recipe ue5m3,ngpt,quartet2,fp4_all_the_way)
succeed(${run} --out "${DIRECTORY}/whole")
succeed(${run} --stop-at 1 --out "${DIRECTORY}/stopped")
succeed(--resume "${DIRECTORY}/stopped" --stop-at 2 --threads 1)
succeed(--resume "${DIRECTORY}/stopped")
expect_same(whole stopped weights-ue5m3.safetensors)
succeed(--resume "${DIRECTORY}/stopped") # nothing is left to do
expect_same(whole stopped)

# Killed (TIMEOUT sends SIGKILL) at random points, as often as it takes.
set(run --text "${TEXT}" --steps 12 --seed 7 --recipe ue5m3,ufp4)
succeed(${run} --out "${DIRECTORY}/uninterrupted")
set(kills 0)
foreach(attempt RANGE 1 80)
  math(EXPR seconds "${attempt} / 12")
  string(RANDOM LENGTH 2 ALPHABET 0123456789 hundredths)
  if(attempt EQUAL 1)
    set(hundredths 15) # too soon to be done
  endif()
  set(arguments --resume "${DIRECTORY}/killed" --checkpoint 1)
  if(NOT EXISTS "${DIRECTORY}/killed/run.txt")
    set(arguments ${run} --checkpoint 1 --out "${DIRECTORY}/killed")
  endif()
  execute_process(
    COMMAND "${PROGRAM}" ${arguments}
    TIMEOUT "${seconds}.${hundredths}"
    RESULT_VARIABLE code
    OUTPUT_QUIET
    ERROR_VARIABLE error
  )
  if(code EQUAL 0)
    break()
  elseif(NOT code MATCHES "timeout")
    message(FATAL_ERROR "resumed after ${kills} kills: exit code ${code}, '${error}'")
  endif()
  math(EXPR kills "${kills} + 1")
endforeach()
if(kills EQUAL 0 OR NOT code EQUAL 0)
  message(SEND_ERROR "${kills} kills, then exit code ${code}")
endif()
expect_same(uninterrupted killed weights-ue5m3.safetensors weights-ufp4.safetensors)

# Nothing goes on from what is not its own.
refuse_to_resume("no run in" "${DIRECTORY}/nowhere")
set(run "${DIRECTORY}/killed")
file(READ "${run}/run.txt" described)
file(WRITE "${run}/run.txt" "--steps=many\n")
refuse_to_resume("run.txt' is damaged: --steps: expected a whole number" "${run}")
string(REPLACE "--seed=7" "--seed=8" changed "${described}")
file(WRITE "${run}/run.txt" "${changed}")
refuse_to_resume("of another run: [^\n]*seed 7[^\n]*seed 8" "${run}")
file(WRITE "${run}/run.txt" "${described}")
file(APPEND "${run}/checkpoint-ue5m3" "x")
refuse_to_resume("truncated or damaged" "${run}")
file(WRITE "${run}/checkpoint-ue5m3" "microscale pretrain checkpoint 1\n")
refuse_to_resume("truncated" "${run}")
file(WRITE "${run}/checkpoint-ue5m3" "")
refuse_to_resume("no checkpoint of this program's format" "${run}")
