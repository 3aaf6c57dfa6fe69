# Rules that a reviewer would otherwise have to watch:
# - what depends on CUDA lives in src/gpu; elsewhere no preprocessor conditional asks about it;
# - public headers include the standard library and each other, nothing else;
# - every design note is in the index, docs/README.md.
set(broken "")

file(GLOB_RECURSE sources ${ROOT}/include/*.h ${ROOT}/src/*.h ${ROOT}/src/*.cpp ${ROOT}/engine/*.h
  ${ROOT}/engine/*.cpp ${ROOT}/serve/*.h ${ROOT}/serve/*.cpp ${ROOT}/cli/*.h ${ROOT}/cli/*.cpp ${ROOT}/tests/*.h ${ROOT}/tests/*.cpp
  ${ROOT}/bench/*.h ${ROOT}/bench/*.cpp)
list(LENGTH sources count)
if(count LESS 20)
  message(FATAL_ERROR "found only ${count} sources under ${ROOT}")
endif()
foreach(source ${sources})
  file(RELATIVE_PATH name ${ROOT} ${source})
  if(name MATCHES "^src/gpu/")
    continue()
  endif()
  file(STRINGS ${source} lines REGEX "^[ \t]*#[ \t]*(if|ifdef|ifndef|elif).*(CUDA|NVCC|SERINUS_GPU)")
  foreach(line ${lines})
    string(APPEND broken "  ${name}: ${line}\n    a CUDA guard outside src/gpu\n")
  endforeach()
endforeach()

file(GLOB_RECURSE headers ${ROOT}/include/*.h)
foreach(header ${headers})
  file(RELATIVE_PATH name ${ROOT} ${header})
  file(STRINGS ${header} lines REGEX "^[ \t]*#[ \t]*include")
  foreach(line ${lines})
    if(NOT line MATCHES "#include <(serinus/[a-z0-9_]+\\.h|[a-z_]+|std[a-z]+\\.h)>")
      string(APPEND broken "  ${name}: ${line}\n    neither the standard library nor a public header\n")
    endif()
  endforeach()
endforeach()

file(READ ${ROOT}/docs/README.md index)
file(GLOB notes RELATIVE ${ROOT}/docs ${ROOT}/docs/design/*.md)
foreach(note ${notes})
  string(FIND "${index}" "(${note})" at)
  if(at EQUAL -1)
    string(APPEND broken "  docs/${note}\n    is not in docs/README.md\n")
  endif()
endforeach()

if(broken)
  message(FATAL_ERROR "rules of the tree are broken:\n${broken}")
endif()
message("${count} sources, all by the rules")
