# install(): the library, its headers, the command, and a CMake package that find_package(serinus) finds.
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

if(SERINUS_COMMAND)
  install(TARGETS serinus_command RUNTIME)
endif()
