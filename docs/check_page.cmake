# cmake -D PROGRAM=… -D PAGE=… -P check_page.cmake: is the page what the program prints?
execute_process(COMMAND "${PROGRAM}" OUTPUT_VARIABLE printed COMMAND_ERROR_IS_FATAL ANY)
file(READ "${PAGE}" page)
if(NOT printed STREQUAL page)
  message(FATAL_ERROR "${PAGE} is out of date: it has to be what ${PROGRAM} prints")
endif()
