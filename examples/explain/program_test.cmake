cmake_minimum_required(VERSION 3.25)

# What the program promises: the rule behind bytes, found; exit code 1 where bytes are not accounted for; one clear line and
# 2 for what makes no sense. Called with -D PROGRAM=… INSPECT=… VECTORS=… DIRECTORY=….
file(REMOVE_RECURSE "${DIRECTORY}")
file(MAKE_DIRECTORY "${DIRECTORY}")

function(expect code pattern)
  execute_process(COMMAND "${PROGRAM}" ${ARGN} RESULT_VARIABLE got OUTPUT_VARIABLE output ERROR_VARIABLE error)
  if(NOT got EQUAL code)
    message(SEND_ERROR "${ARGN}: exit code ${got} instead of ${code}: ${output}${error}")
  endif()
  if(code EQUAL 2)
    if(NOT output STREQUAL "" OR NOT error MATCHES "^explain: [^\n]*${pattern}[^\n]*\n$")
      message(SEND_ERROR "${ARGN}: expected one line with '${pattern}', got '${output}${error}'")
    endif()
  elseif(NOT output MATCHES "${pattern}")
    message(SEND_ERROR "${ARGN}: expected '${pattern}', got '${output}${error}'")
  endif()
endfunction()

# Vector files of the project are what they say.
foreach(name schemes_mx schemes_nvfp4)
  expect(0 "[1-9][0-9]* are what the scheme they name gives, 0 what another does, 0 neither" "${VECTORS}/${name}.vec")
endforeach()

# A case that names one scheme and has the bytes of another; one with a wrong scale; one that truncates.
set(head "microscale-vectors 1\nid=a op=quantize rows=1 cols=4 ")
file(WRITE "${DIRECTORY}/other.vec" "${head}scheme=mxfp4 in=40e00000,3f800000,00000000,80000000 scales=80 codes=6,1,0,8\n")
expect(1 "a: not mxfp4, but mxfp4_even" "${DIRECTORY}/other.vec")
file(WRITE "${DIRECTORY}/none.vec" "${head}scheme=mxfp4 in=40e00000,3f800000,00000000,80000000 scales=70 codes=6,1,0,8\n")
expect(1 "a: not mxfp4, nor any other" "${DIRECTORY}/none.vec")
expect(1 "no named scheme gives these bytes.*scale in the file +70 .*<- differs" "${DIRECTORY}/none.vec" --id a)
file(WRITE "${DIRECTORY}/zero.vec" "${head}scheme=mxfp4 in=40e00000,3f400000,3e800000,80000000 scales=7f codes=7,1,0,8\n")
expect(1 "mxfp4, rounding toward_zero" "${DIRECTORY}/zero.vec")
file(WRITE "${DIRECTORY}/sign.vec" "${head}scheme=mxfp4 in=40e00000,3f800000,00000000,80000000 scales=7f codes=7,2,0,0\n")
expect(1 "only the signs of zeros differ" "${DIRECTORY}/sign.vec" --id a)

# Checkpoints: 64 x 64 floats, each the text "AAAA" or "AAAB".
set(json "{\"layer.weight\":{\"dtype\":\"F32\",\"shape\":[64,64],\"data_offsets\":[0,16384]}}")
string(LENGTH "${json}" length)
math(EXPR padding "123 - ${length}")
string(REPEAT " " ${padding} spaces)
string(REPEAT "AAAAAAA@AAA?AAA>" 1023 numbers)
execute_process(
  COMMAND printf "{\\0\\0\\0\\0\\0\\0\\0%s%s%sAAAAAAA@AAA?AAAB" "${json}" "${spaces}" "${numbers}"
  OUTPUT_FILE "${DIRECTORY}/model.safetensors"
)
set(model "${DIRECTORY}/model.safetensors")
foreach(scheme nvfp4_modelopt nvfp4_single)
  execute_process(
    COMMAND "${INSPECT}" "${model}" --to ${scheme} --as modelopt --out "${DIRECTORY}/${scheme}" COMMAND_ERROR_IS_FATAL ANY
    OUTPUT_QUIET
  )
endforeach()
execute_process(
  COMMAND "${INSPECT}" "${model}" --to nvfp4_compressed_tensors --as compressed-tensors --out "${DIRECTORY}/theirs"
          COMMAND_ERROR_IS_FATAL ANY
  OUTPUT_QUIET
)
expect(0 "every byte of 256 blocks is that of:.*nvfp4_modelopt\n" "${DIRECTORY}/nvfp4_modelopt" "${model}")
expect(0 "every byte of 256 blocks is that of:.*nvfp4_compressed_tensors\n" "${model}" "${DIRECTORY}/theirs:layer.weight")
expect(0 "codes differing   0 of 4096" "${DIRECTORY}/nvfp4_modelopt" "${DIRECTORY}/nvfp4_modelopt")
expect(1 "a multiplier and a divisor" "${DIRECTORY}/nvfp4_modelopt" "${DIRECTORY}/theirs")
expect(1 "scales differing  256 of 256" "${DIRECTORY}/nvfp4_modelopt" "${DIRECTORY}/nvfp4_single")

expect(2 "two or three files")
expect(2 "unknown option" --colour)
expect(2 "cannot be opened" "${DIRECTORY}/missing" "${model}")
expect(2 "cannot be opened" "${DIRECTORY}/missing.vec")
expect(2 "two files of plain numbers" "${model}" "${model}")
expect(2 "holds no matrix 'x'" "${model}:x" "${model}")
expect(2 "no quantize case 'b'" "${DIRECTORY}/sign.vec" --id b)
expect(2 "one without the other" --codes "${model}" "${model}")
file(WRITE "${DIRECTORY}/bad.vec" "microscale-vectors 1\nid=a op=quantize scheme=mxfp4 rows=1 cols=4 in=1 scales=7f codes=1\n")
expect(2 "bad.vec:2: the lists are not of the case's shape" "${DIRECTORY}/bad.vec")
file(WRITE "${DIRECTORY}/typo.vec" "microscale-vectors 1\nid=a op=quantise\n")
expect(2 "typo.vec:2: unknown op" "${DIRECTORY}/typo.vec")
