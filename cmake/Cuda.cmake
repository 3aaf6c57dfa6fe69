# CUDA found or absent. Sets SERINUS_WITH_CUDA; a source list asks that, a source file never does:
# src/gpu/absent.cpp answers for everything that is compiled with CUDA alone.
set(SERINUS_WITH_CUDA OFF)
if(SERINUS_CUDA STREQUAL "OFF")
  return()
endif()

# nvcc often lies outside the PATH.
if(NOT DEFINED CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(SERINUS_NVCC nvcc HINTS /usr/local/cuda/bin)
  mark_as_advanced(SERINUS_NVCC)
  if(SERINUS_NVCC)
    set(CMAKE_CUDA_COMPILER ${SERINUS_NVCC})
  endif()
endif()
# 90a: wgmma and setmaxnreg exist on this one architecture, and PTX of it runs nowhere else.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 90a-real)
endif()
# A toolkit that is too old for the kernels counts as absent.
find_package(CUDAToolkit 12.8 QUIET)
include(CheckLanguage)
check_language(CUDA)
if(CMAKE_CUDA_COMPILER AND CUDAToolkit_FOUND)
  enable_language(CUDA)
  # CMake 3.25 does not know that nvcc speaks C++20.
  foreach(kind STANDARD EXTENSION)
    if(NOT CMAKE_CUDA20_${kind}_COMPILE_OPTION)
      set(CMAKE_CUDA20_${kind}_COMPILE_OPTION "-std=c++20")
    endif()
  endforeach()
  string(APPEND CMAKE_CUDA_FLAGS " --expt-relaxed-constexpr -lineinfo -Xcompiler=-Wall,-Wextra")
  # A kernel that spills, or keeps an array in local memory, is a bug here: the build stops.
  string(APPEND CMAKE_CUDA_FLAGS
    " -Xptxas=--warn-on-spills,--warn-on-local-memory-usage,--warning-as-error")
  set(SERINUS_WITH_CUDA ON)
elseif(SERINUS_CUDA STREQUAL "REQUIRED")
  message(FATAL_ERROR "SERINUS_CUDA=REQUIRED, but no CUDA compiler of version 12.8 or later was found (set CMAKE_CUDA_COMPILER)")
endif()
message(STATUS "Serinus: CUDA backends ${SERINUS_WITH_CUDA}")
