#include "gpu/async.h"

#include <cuda_runtime.h>

#include "gpu/launch.h"

namespace serinus::gpu {

namespace {

cudaStream_t handle_of(Stream stream) {
  return static_cast<cudaStream_t>(stream.handle);
}

}  // namespace

PinnedMemory::PinnedMemory(Device device, std::size_t bytes) : bytes_(bytes) {
  const OnDevice on(device);
  check_launch("cudaMallocHost", cudaMallocHost(&data_, bytes));
}

PinnedMemory::~PinnedMemory() {
  if (data_ != nullptr) cudaFreeHost(data_);
}

Event::Event(Device device) : device_(device) {
  const OnDevice on(device);
  cudaEvent_t event = nullptr;
  check_launch("cudaEventCreate", cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  handle_ = event;
}

Event::~Event() {
  if (handle_ != nullptr) cudaEventDestroy(static_cast<cudaEvent_t>(handle_));
}

void Event::record(Stream stream) {
  const OnDevice on(device_);
  check_launch("cudaEventRecord",
               cudaEventRecord(static_cast<cudaEvent_t>(handle_), handle_of(stream)));
}

bool Event::done() const {
  const cudaError_t state = cudaEventQuery(static_cast<cudaEvent_t>(handle_));
  if (state == cudaErrorNotReady) return false;
  check_launch("cudaEventQuery", state);
  return true;
}

void Event::hold(Stream stream) const {
  const OnDevice on(device_);
  check_launch("cudaStreamWaitEvent",
               cudaStreamWaitEvent(handle_of(stream), static_cast<cudaEvent_t>(handle_)));
}

OwnStream::OwnStream(Device device) {
  const OnDevice on(device);
  cudaStream_t stream = nullptr;
  check_launch("cudaStreamCreate", cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  handle_ = stream;
}

OwnStream::~OwnStream() {
  cudaStreamDestroy(static_cast<cudaStream_t>(handle_));
}

BesideCapture::BesideCapture() {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  check_launch("cudaThreadExchangeStreamCaptureMode", cudaThreadExchangeStreamCaptureMode(&mode));
  mode_ = static_cast<int>(mode);
}

BesideCapture::~BesideCapture() {
  auto mode = static_cast<cudaStreamCaptureMode>(mode_);
  cudaThreadExchangeStreamCaptureMode(&mode);
}

std::uint64_t capture_of(Device device, Stream stream) {
  if (stream.handle == nullptr) return 0;  // the default stream cannot be captured
  const OnDevice on(device);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  check_launch("cudaStreamGetCaptureInfo",
               cudaStreamGetCaptureInfo(handle_of(stream), &status, &id));
  return status == cudaStreamCaptureStatusActive ? id : 0;
}

void copy_to_device(Device device, void* to, const void* from, std::size_t bytes, Stream stream) {
  if (bytes == 0) return;
  const OnDevice on(device);
  check_launch("cudaMemcpyAsync",
               cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, handle_of(stream)));
}

void copy_to_host(Device device, void* to, const void* from, std::size_t bytes, Stream stream) {
  if (bytes == 0) return;
  const OnDevice on(device);
  check_launch("cudaMemcpyAsync",
               cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, handle_of(stream)));
}

void synchronize(Device device) {
  const OnDevice on(device);
  check_launch("cudaDeviceSynchronize", cudaDeviceSynchronize());
}

void synchronize(Device device, Stream stream) {
  const OnDevice on(device);
  check_launch("cudaStreamSynchronize", cudaStreamSynchronize(handle_of(stream)));
}

}  // namespace serinus::gpu
