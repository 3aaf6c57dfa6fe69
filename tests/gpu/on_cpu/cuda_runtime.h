// The runtime calls of the canary and its tests, on host memory.
#pragma once

#include <malloc.h>

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
using cudaEvent_t = void*;
enum {
  cudaSuccess,
  cudaMemcpyHostToDevice,
  cudaMemcpyDeviceToHost,
  cudaErrorNotReady,
  cudaErrorMemoryAllocation
};
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal, cudaStreamCaptureModeRelaxed };
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone, cudaStreamCaptureStatusActive };
enum { cudaStreamNonBlocking = 1, cudaEventDisableTiming };

namespace emulator {
/// Launches since a capture began; null while there is none.
inline std::vector<std::function<void()>>* capture = nullptr;
inline unsigned long long captures = 0;
inline std::size_t streams = 0;
/// What launches and events answer: a device that has failed says so at every call.
inline cudaError_t failure = cudaSuccess;
inline std::size_t allocated = 0;  // bytes of the device
}  // namespace emulator

inline const char* cudaGetErrorString(cudaError_t) {
  return "an emulated device has no errors";
}
template <class T>
cudaError_t cudaMalloc(T** p, std::size_t n) {
  constexpr std::size_t kMemory = std::size_t{8} << 30;  // of the device: more is a test's mistake
  void* const memory = n <= kMemory ? std::aligned_alloc(256, (n + 255) / 256 * 256) : nullptr;
  *reinterpret_cast<void**>(p) = memory;
  emulator::allocated += malloc_usable_size(memory);
  return memory != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
}
inline cudaError_t cudaFree(void* p) {
  emulator::allocated -= malloc_usable_size(p);
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
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, int) {
  *stream = reinterpret_cast<cudaStream_t>(++emulator::streams);
  return cudaSuccess;
}
inline cudaError_t cudaStreamDestroy(cudaStream_t) {
  return cudaSuccess;
}
inline cudaError_t cudaStreamBeginCapture(cudaStream_t, int) {
  emulator::capture = new std::vector<std::function<void()>>;
  ++emulator::captures;
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
inline cudaError_t cudaGraphGetNodes(cudaGraph_t graph, void*, std::size_t* count) {
  *count = static_cast<cudaGraphExec_t>(graph)->size();
  return cudaSuccess;
}
inline cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* status,
                                            unsigned long long* id) {
  *status =
      emulator::capture != nullptr ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  *id = emulator::captures;
  return cudaSuccess;
}
inline cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) {
  return cudaSuccess;
}

// All is done when the call returns.
inline cudaError_t cudaMallocHost(void** p, std::size_t n) {
  return cudaMalloc(p, n);
}
inline cudaError_t cudaFreeHost(void* p) {
  return cudaFree(p);
}
inline cudaError_t cudaEventCreate(cudaEvent_t*) {
  return cudaSuccess;
}
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t*, int) {
  return cudaSuccess;
}
inline cudaError_t cudaEventDestroy(cudaEvent_t) {
  return cudaSuccess;
}
inline cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t = nullptr) {
  return emulator::failure;
}
inline cudaError_t cudaEventQuery(cudaEvent_t) {
  return cudaSuccess;
}
inline cudaError_t cudaEventSynchronize(cudaEvent_t) {
  return cudaSuccess;
}
inline cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t, cudaEvent_t) {
  *ms = 0;
  return cudaSuccess;
}
inline cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t) {
  return cudaSuccess;
}
inline cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
inline cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
inline cudaError_t cudaSetDevice(int) {
  return cudaSuccess;
}
/// Nothing runs beside the host here.
inline cudaError_t cudaLaunchHostFunc(cudaStream_t, void (*)(void*), void*) {
  return cudaErrorNotReady;
}
