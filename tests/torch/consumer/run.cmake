# Installs the two libraries out of BUILD, builds the project here against them
# and runs it on FIXTURE.
set(prefix "${WORK}/prefix")
file(REMOVE_RECURSE "${WORK}")
function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE failed OUTPUT_VARIABLE out ERROR_VARIABLE out)
  if(failed)
    message(FATAL_ERROR "${ARGV} failed:\n${out}")
  endif()
  set(out "${out}" PARENT_SCOPE)
endfunction()

foreach(component library torch)
  run(${CMAKE_COMMAND} --install "${BUILD}" --component ${component} --prefix "${prefix}")
endforeach()
run(${CMAKE_COMMAND} -S "${CMAKE_CURRENT_LIST_DIR}" -B "${WORK}/build" -G "${GENERATOR}"
  "-DCMAKE_PREFIX_PATH=${prefix}" "-DTorch_DIR=${TORCH_DIR}" "-DCMAKE_CXX_COMPILER=${COMPILER}"
  "-DCMAKE_CXX_FLAGS=${FLAGS}" -DCMAKE_BUILD_TYPE=Release)
run(${CMAKE_COMMAND} --build "${WORK}/build")
run("${WORK}/build/weights" "${FIXTURE}")
foreach(line "0 missing, 12 unexpected" "down(up(1)) has 13 elements" "embed.weight Float [37, 13]"
    "adapter.weight BFloat16 [13, 13]" "mask Bool [5]")
  string(FIND "${out}" "${line}" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "expected '${line}' in:\n${out}")
  endif()
endforeach()
