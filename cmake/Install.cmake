# install(): the library, its headers, the command, a CMake package that find_package(serinus) finds, and
# serinus.pc for everybody else (cc, Rust, Go, Meson).
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/serinus)
install(TARGETS serinus EXPORT serinus-targets)
install(DIRECTORY include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT serinus-targets NAMESPACE serinus:: DESTINATION ${package_dir})

# A static library hands what it links to its user: the package asks for exactly that.
get_target_property(linked serinus LINK_LIBRARIES)
get_target_property(kind serinus TYPE)
set(SERINUS_NEEDS_HIGHWAY OFF)
set(SERINUS_NEEDS_CUDA OFF)
if(kind STREQUAL "STATIC_LIBRARY" AND linked MATCHES "hwy")
  set(SERINUS_NEEDS_HIGHWAY ON)
endif()
if(kind STREQUAL "STATIC_LIBRARY" AND linked MATCHES "CUDA::")
  set(SERINUS_NEEDS_CUDA ON)
endif()
configure_package_config_file(cmake/serinus-config.cmake.in ${PROJECT_BINARY_DIR}/serinus-config.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/serinus-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/serinus-config.cmake ${PROJECT_BINARY_DIR}/serinus-config-version.cmake
  DESTINATION ${package_dir})

# The same for pkg-config, from wherever the folder is moved to.
set(needed -pthread)
if(SERINUS_NEEDS_HIGHWAY)
  list(APPEND needed -lhwy)
endif()
if(SERINUS_NEEDS_CUDA)
  list(APPEND needed -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -ldl -lrt)
endif()
# What a C compiler's driver does not add by itself.
foreach(library ${CMAKE_CXX_IMPLICIT_LINK_LIBRARIES})
  if(library MATCHES "^(stdc\\+\\+|c\\+\\+|c\\+\\+abi|m)$")
    list(APPEND needed -l${library})
  endif()
endforeach()
if(SERINUS_SANITIZE)
  list(APPEND needed -fsanitize=${SERINUS_SANITIZE})
endif()
list(JOIN needed " " needed)
set(SERINUS_PC_LIBS "")
set(SERINUS_PC_LIBS_PRIVATE "")
if(kind STREQUAL "STATIC_LIBRARY")
  set(SERINUS_PC_LIBS "${needed}")
else()
  set(SERINUS_PC_LIBS_PRIVATE "${needed}")
endif()
set(pc_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH SERINUS_PREFIX_FROM_PC /prefix/${pc_dir} /prefix)
configure_file(cmake/serinus.pc.in ${PROJECT_BINARY_DIR}/serinus.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/serinus.pc DESTINATION ${pc_dir})

if(SERINUS_COMMAND)
  install(TARGETS serinus_command RUNTIME)
endif()
