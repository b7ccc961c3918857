# cmake -DRUNNER=… -DSCRATCH=… -P check_runner.cmake: does the vector runner say what is wrong, and where?
#
# Trust goes through this tool: a failure must not pass, and a typo must not switch a check off.
cmake_minimum_required(VERSION 3.25)

set(checks 0)
file(MAKE_DIRECTORY "${SCRATCH}")

# Runs the runner on files of the given contents; expects an exit status, and each further argument in what it says.
function(expect status)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "FILES;SAYS")
  execute_process(
    COMMAND "${RUNNER}" ${arg_FILES}
    WORKING_DIRECTORY "${SCRATCH}"
    RESULT_VARIABLE got
    OUTPUT_VARIABLE out
    ERROR_VARIABLE err
  )
  set(said "${out}${err}")
  if(NOT got STREQUAL status)
    message(SEND_ERROR "${arg_FILES}: expected exit status ${status}, got ${got}:\n${said}")
  endif()
  foreach(text IN LISTS arg_SAYS)
    string(FIND "${said}" "${text}" at)
    if(at EQUAL -1)
      message(SEND_ERROR "${arg_FILES}: expected '${text}' in:\n${said}")
    endif()
  endforeach()
  math(EXPR count "${checks} + 1")
  set(checks ${count} PARENT_SCOPE)
endfunction()

set(header "microscale-vectors 1\n")
set(good "id=good op=encode format=e2m1 in=40200000 codes=4\n")

# One bad line after the header, a comment and a good case: line 4.
macro(malformed line says)
  file(WRITE "${SCRATCH}/bad.vec" "${header}# a comment\n${good}${line}\n")
  expect(2 FILES bad.vec SAYS "bad.vec:4: ${says}" "0 passed, 0 failed, 0 skipped")
endmacro()

# What passes, fails and is skipped.
file(WRITE "${SCRATCH}/good.vec" "${header}\n# a comment\n${good}")
expect(0 FILES good.vec SAYS "1 passed, 0 failed, 0 skipped")
file(WRITE "${SCRATCH}/empty.vec" "${header}")
expect(0 FILES empty.vec SAYS "0 passed, 0 failed, 0 skipped")

# One failing case of each operation, and of each field of a quantization; the last one is right.
set(ones "3f800000,3f800000,3f800000,3f800000")
string(
  CONCAT failing "${header}"
  "id=scalar op=encode format=e2m1 in=40200000,3f800000 codes=4,3\n"
  "id=decode op=decode format=ue5m3 codes=fe,78 out=47e00000,00000000\n"
  "id=zero op=encode format=e2m1 in=80000000 codes=0\n"
  "id=scale op=quantize scheme=nvfp4_single rows=1 cols=4 in=${ones} scales=24\n"
  "id=codes op=quantize scheme=mxfp4 rows=1 cols=4 in=${ones} scales=7d codes=6,6,6,7\n"
  "id=factors op=quantize scheme=nvfp4 rows=1 cols=4 amax=3f800000 in=${ones} tensor_scale=39c30c32 tensor_encode=45280001\n"
  "id=out op=quantize scheme=nvfp4 rows=1 cols=4 amax=3f800000 in=${ones} out=3f800000,3f800000,3f800000,3f800001\n"
  "id=reference op=quantize scheme=nvfp4 rows=1 cols=4 amax=7fc00000 in=${ones} out=${ones}\n"
  "id=back op=dequantize scheme=mxfp4 rows=1 cols=1 codes=2 scales=7f out=3f800001\n"
  "id=gemm op=gemm scheme=mxfp4 b_scheme=nvfp4 m=1 n=1 k=1 a_codes=2 a_scales=7f b_codes=2 b_scales=38 accumulate=exact_f32 out=40000000\n"
  "id=pack op=pack bits=4 codes=1,2 bytes=12\n"
  "id=hadamard op=hadamard size=2 in=00000000,00000000 out=00000000,3f800000\n"
  "id=layout op=layout name=swizzle_128x4 rows=0 cols=0 in= bytes=\n"
)
file(WRITE "${SCRATCH}/failing.vec" "${failing}")
expect(
  1
  FILES failing.vec good.vec
  SAYS "FAILED scalar: codes[1]: expected 3, got 2 (1 of 2 differ)\n"
       "FAILED decode: out[1]: expected 00000000, got 3f800000 (1 of 2 differ)\n"
       "FAILED zero: codes: expected 0, got 8\n"
       "FAILED scale: scales (block by block): expected 24, got 23"
       "FAILED codes: codes[3] (block by block): expected 7, got 6 (1 of 4 differ)"
       "tensor_scale: expected 39c30c32, got 39c30c31"
       "tensor_encode: expected 45280001, got 45280000"
       "FAILED out: out[3] (dequantized): expected 3f800001, got 3f800000"
       "FAILED reference: microscale: reference amax: expected a finite number"
       "FAILED back: out: expected 3f800001, got 3f800000\n"
       "FAILED gemm: out: expected 40000000, got 3f800000\n"
       "FAILED pack: bytes: expected 12, got 21\n"
       "FAILED hadamard: out[1]: expected 3f800000, got 00000000 (1 of 2 differ)\n"
       "\n2 passed, 12 failed, 0 skipped\n"
)
file(WRITE "${SCRATCH}/skipped.vec"
  "${header}id=odd op=quantize policy=int_full scheme=nvfp4 rows=0 cols=0 in= out=\n")
expect(
  0
  FILES skipped.vec
  SAYS "skipped odd: policy int_full is not offered for quantize to nvfp4\n" "0 passed, 0 failed, 1 skipped\n"
)

# What is wrong with a line.
malformed("id=x op=encode format=e2m1 in=3f800000 codes=2 bogus=1" "unknown key 'bogus' for op encode")
malformed("id=x op=encode format=e2m1 in=3f800000 out=2" "unknown key 'out' for op encode")
malformed("id=x op=encode format=e2m1 in=3f800000" "nothing is expected")
malformed("id=x op=encode format=e2m1 codes=2" "op encode needs one of 'in' and 'in64'")
malformed("id=x op=encode in=3f800000 codes=2" "op encode needs 'format'")
malformed("id=x op=encode format=e2m2 in=3f800000 codes=2" "unknown format 'e2m2'")
malformed("id=x op=encode format=e2m1 in=3f80000 codes=2" "in: expected 8 hex digits of an f32, got '3f80000'")
malformed("id=x op=encode format=e2m1 in=3f80000g codes=2" "in: expected 8 hex digits of an f32, got '3f80000g'")
malformed("id=x op=encode format=e2m1 in=0x3f8000 codes=2" "in: expected 8 hex digits of an f32")
malformed("id=x op=encode format=e2m1 in=nan codes=2" "in: expected 8 hex digits of an f32, got 'nan'")
malformed("id=x op=encode format=e2m1 in64=3f800000 codes=2" "in64: expected 16 hex digits of an f64")
malformed("id=x op=encode format=e2m1 in=3f800000, codes=2" "in: expected 8 hex digits of an f32, got ''")
malformed("id=x op=encode format=e2m1 in=3f800000 codes=10" "codes: expected one or two hex digits of a code, got '10'")
malformed("id=x op=encode format=e2m1 in=3f800000 codes=2,2" "codes: expected a list of 1, got 2")
malformed("id=x op=encode format=e2m1 in=3f800000 codes=2 rounding=up" "unknown rounding 'up'")
malformed("id=x op=encode format=e2m1 in=3f800000 codes=2 overflow=wrap" "unknown overflow 'wrap'")
malformed("id=x op=encode format=e2m1 in=3f800000 codes=2 rounding=stochastic_floor8"
  "rounding stochastic_floor8 needs 'random'")
malformed("id=x op=encode format=e2m1 in=3f800000 codes=2 random=7f" "rounding nearest_even takes no 'random'")
malformed("id=x op=encode format=e2m1 in=3f800000 codes=2 rounding=stochastic_floor8 random=100"
  "random: expected one or two hex digits of a byte, got '100'")
malformed("id=x op=encode format=e2m1 in=3f800000 codes=2 policy=mine" "unknown policy 'mine'")
malformed("id=x op=round format=e2m1 in=3f800000 codes=2" "unknown op 'round'")
malformed("id=x format=e2m1 in=3f800000 codes=2" "a case needs an op")
malformed("op=encode format=e2m1 in=3f800000 codes=2" "a case needs an id")
malformed("id=good op=encode format=e2m1 in=3f800000 codes=2" "id 'good' is used twice")
malformed("id=x op=encode format=e2m1 format=e2m1 in=3f800000 codes=2" "key 'format' is given twice")
malformed("id=x op=encode  format=e2m1 in=3f800000 codes=2" "fields are separated by single spaces")
malformed("id=x op=encode format=e2m1 in=3f800000 codes=2 " "fields are separated by single spaces")
malformed("id=x op=encode format=e2m1 in=3f800000 codes=2 loose" "expected key=value, got 'loose'")
malformed("id=x op=quantize scheme=nvfp5 rows=1 cols=1 in=3f800000 codes=2" "unknown scheme 'nvfp5'")
malformed("id=x op=quantize scheme=nvfp4 rows=1 cols=2 in=3f800000 codes=2,2" "in: expected a list of 2, got 1")
malformed("id=x op=quantize scheme=nvfp4 rows=-1 cols=2 in= codes=" "rows: expected an integer from 0")
malformed("id=x op=quantize scheme=nvfp4 rows=1 cols=1 in=3f800000 codes=2 axis=up" "unknown axis 'up'")
malformed("id=x op=quantize scheme=nvfp4 rows=1 cols=1 in=3f800000 scales=38,38" "scales: expected a list of 1, got 2")
malformed("id=x op=quantize scheme=nvfp4 rows=1 cols=1 in=3f800000 codes=2 target=448" "scheme nvfp4 takes no 'target'")
malformed("id=x op=quantize scheme=nvfp4_ms_eden rows=1 cols=1 in=3f800000 codes=7"
  "scheme nvfp4_ms_eden needs 'scale_random'")
malformed("id=x op=quantize scheme=nvfp4 rows=1 cols=1 in=3f800000 scale_random=00000000 codes=7"
  "scheme nvfp4 takes no 'scale_random'")
malformed("id=x op=quantize scheme=nvfp4_ms_eden rows=1 cols=1 in=3f800000 scale_random=0 codes=7"
  "scale_random: expected 8 hex digits of a draw, got '0'")
malformed("id=x op=quantize scheme=nvfp4_ms_eden rows=1 cols=17 in= scale_random=00000000 codes="
  "in: expected a list of 17, got 0")
malformed("id=x op=quantize scheme=mxfp4 rows=1 cols=1 in=3f800000 tensor_scale=3f800000"
  "scheme mxfp4 has no tensor scale")
malformed("id=x op=dequantize scheme=nvfp4 rows=1 cols=1 codes=2 scales=38 out=3f800000" "op dequantize needs 'amax'")
malformed("id=x op=dequantize scheme=nvfp4 rows=1 cols=1 codes=2 scales=38 amax=3f800000 tensor_scale=3f800000 out=3f800000"
  "scheme nvfp4 does not store 'tensor_scale'")
malformed("id=x op=gemm scheme=nvfp4 m=1 n=1 k=1 a_codes=2 a_scales=38 b_codes=2 b_scales=38 accumulate=fast out=3f800000"
  "unknown accumulate 'fast'")
malformed("id=x op=gemm scheme=nvfp4 m=1 n=1 k=17 a_codes=2 a_scales=38 b_codes=2 b_scales=38 accumulate=exact_f32 out=3f800000"
  "a_codes: expected a list of 17, got 1")
malformed("id=x op=pack bits=9 codes=1 bytes=01" "bits: expected an integer from 1 to 8, got '9'")
malformed("id=x op=pack bits=4 codes=1,2,3 bytes=21" "bytes: expected a list of 2, got 1")
malformed("id=x op=layout name=swizzle rows=0 cols=0 in= bytes=" "unknown layout 'swizzle'")
malformed("id=x op=hadamard size=3 in= out=" "size: expected a power of two, got '3'")
malformed("id=x op=hadamard size=2 in=3f800000 out=3f800000" "in: expected a multiple of 2, got 1")
malformed("id=x op=hadamard size=2 signs=+,0 in= out=" "signs: expected + or -, got '0'")

# What is wrong with a file. The other files are run all the same.
file(WRITE "${SCRATCH}/bad.vec" "${good}")
expect(2 FILES bad.vec good.vec SAYS "bad.vec:1: the first line is not 'microscale-vectors 1'" "1 passed, 0 failed, 0 skipped")
file(WRITE "${SCRATCH}/bad.vec" "microscale-vectors 2\n${good}")
expect(2 FILES bad.vec SAYS "bad.vec:1: the first line is not")
file(WRITE "${SCRATCH}/bad.vec" "")
expect(2 FILES bad.vec SAYS "bad.vec:1: the first line is not")
expect(2 FILES nowhere.vec SAYS "nowhere.vec: cannot be opened" "0 passed, 0 failed, 0 skipped")
expect(2 FILES good.vec . SAYS "1 passed, 0 failed, 0 skipped")
expect(2 FILES SAYS "usage: conformance_vectors FILE...")

message(STATUS "${checks} checks")
