# Flags that every target of the project is compiled with.
if(SERINUS_FUZZ AND NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  message(FATAL_ERROR "SERINUS_FUZZ needs clang (preset fuzz): libFuzzer is a part of it")
endif()

function(serinus_warnings target)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX,C>:-Wall -Wextra -Wconversion>)
  if(SERINUS_SANITIZE)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX,C>:
      -fsanitize=${SERINUS_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer>)
    target_link_options(${target} PUBLIC -fsanitize=${SERINUS_SANITIZE})
  endif()
  if(SERINUS_FUZZ)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=fuzzer-no-link>)
  endif()
endfunction()
