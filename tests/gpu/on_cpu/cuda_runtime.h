// The runtime calls of the canary and its tests, on host memory.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include "emulator.h"

using cudaError_t = int;
using cudaStream_t = void*;
using cudaGraph_t = void*;
using cudaGraphExec_t = std::vector<std::function<void()>>*;
enum { cudaSuccess, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost };
enum { cudaStreamCaptureModeGlobal, cudaStreamNonBlocking };

namespace emulator {
/// Launches since a capture began; null while there is none.
inline std::vector<std::function<void()>>* capture = nullptr;
}  // namespace emulator

inline const char* cudaGetErrorString(cudaError_t) {
  return "an emulated device has no errors";
}
template <class T>
cudaError_t cudaMalloc(T** p, std::size_t n) {
  *reinterpret_cast<void**>(p) = std::aligned_alloc(256, (n + 255) / 256 * 256);
  return cudaSuccess;
}
inline cudaError_t cudaFree(void* p) {
  std::free(p);
  return cudaSuccess;
}
inline cudaError_t cudaMemset(void* p, int v, std::size_t n) {
  std::memset(p, v, n);
  return cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void* p, int v, std::size_t n, cudaStream_t) {
  return cudaMemset(p, v, n);
}
inline cudaError_t cudaMemcpy(void* to, const void* from, std::size_t n, int) {
  std::memcpy(to, from, n);
  return cudaSuccess;
}
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t n, int kind,
                                   cudaStream_t) {
  return cudaMemcpy(to, from, n, kind);
}
inline cudaError_t cudaMemcpy2D(void* to, std::size_t to_pitch, const void* from,
                                std::size_t from_pitch, std::size_t width, std::size_t height,
                                int) {
  for (std::size_t row = 0; row < height; ++row) {
    std::memcpy(static_cast<char*>(to) + row * to_pitch,
                static_cast<const char*>(from) + row * from_pitch, width);
  }
  return cudaSuccess;
}
inline cudaError_t cudaDeviceSynchronize() {
  return cudaSuccess;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t) {
  return cudaSuccess;
}
inline cudaError_t cudaStreamCreate(cudaStream_t*) {
  return cudaSuccess;
}
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t*, int) {
  return cudaSuccess;
}
inline cudaError_t cudaStreamDestroy(cudaStream_t) {
  return cudaSuccess;
}
inline cudaError_t cudaStreamBeginCapture(cudaStream_t, int) {
  emulator::capture = new std::vector<std::function<void()>>;
  return cudaSuccess;
}
inline cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  *graph = emulator::capture;
  emulator::capture = nullptr;
  return cudaSuccess;
}
inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, int) {
  *exec = static_cast<cudaGraphExec_t>(graph);
  return cudaSuccess;
}
inline cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t) {
  for (const auto& launch : *exec) launch();
  return cudaSuccess;
}
inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}
inline cudaError_t cudaGraphDestroy(cudaGraph_t) {
  return cudaSuccess;
}
