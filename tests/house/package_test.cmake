# Installs Serinus into a fresh folder, copies the examples out of the tree, then configures, builds and runs
# them with nothing but that folder. Variables: BUILD (where Serinus was built), EXAMPLES, WORK, CXX and
# CXX_FLAGS (what Serinus was compiled with).
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE rc OUTPUT_VARIABLE out ERROR_VARIABLE out)
  if(NOT rc EQUAL 0)
    message(FATAL_ERROR "failed (${rc}): ${ARGN}\n${out}")
  endif()
  message("${out}")
endfunction()

file(REMOVE_RECURSE ${WORK})
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/prefix)
file(COPY ${EXAMPLES}/ DESTINATION ${WORK}/outside)
run(${CMAKE_COMMAND} -S ${WORK}/outside -B ${WORK}/build -G Ninja -DCMAKE_PREFIX_PATH=${WORK}/prefix
  -DCMAKE_CXX_COMPILER=${CXX} "-DCMAKE_CXX_FLAGS=${CXX_FLAGS} -Wall -Wextra -Wconversion -Werror"
  -DCMAKE_FIND_USE_PACKAGE_REGISTRY=OFF)
run(${CMAKE_COMMAND} --build ${WORK}/build)
foreach(example watch_a_pool every_pool attach_monitor attach_monitor_c)
  execute_process(COMMAND ${WORK}/build/${example} RESULT_VARIABLE rc OUTPUT_VARIABLE out)
  message("${out}")
  if(NOT rc EQUAL 0 OR NOT out MATCHES "kv_bytes")
    message(FATAL_ERROR "the example ${example} did not report the flipped byte (${rc})")
  endif()
endforeach()
run(${WORK}/build/custom_layout)

# Built where there is a CUDA runtime; they say so where there is no GPU.
if(EXISTS ${WORK}/build/attach_cuda)
  execute_process(COMMAND ${WORK}/build/attach_cuda RESULT_VARIABLE rc OUTPUT_VARIABLE out)
  message("${out}")
  if(NOT rc EQUAL 0 OR NOT out MATCHES "kv_bytes|no GPU")
    message(FATAL_ERROR "the example attach_cuda did not report the flipped byte (${rc})")
  endif()
endif()
if(EXISTS ${WORK}/build/sparse_mla_prefill)
  execute_process(COMMAND ${WORK}/build/sparse_mla_prefill RESULT_VARIABLE rc OUTPUT_VARIABLE out)
  message("${out}")
  if(NOT rc EQUAL 0 OR NOT out MATCHES "[CG]PU: out.*lse")
    message(FATAL_ERROR "the prefill example failed (${rc})")
  endif()
endif()
