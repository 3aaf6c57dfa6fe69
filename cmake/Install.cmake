# install(): the library, its headers and a CMake package that find_package(serinus) finds.
include(CMakePackageConfigHelpers)
install(TARGETS serinus EXPORT serinus-targets)
install(DIRECTORY include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT serinus-targets NAMESPACE serinus:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/serinus)
if(SERINUS_COMMAND)
  install(TARGETS serinus_command RUNTIME)
endif()
