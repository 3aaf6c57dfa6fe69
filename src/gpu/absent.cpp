// What a build without CUDA answers in place of everything that CUDA would do.
#include "base/checks.h"
#include "base/raise.h"
#include "gpu/async.h"
#include "gpu/device.h"
#include "gpu/memory.h"

namespace serinus::gpu {

Survey survey() {
  Survey s;
  s.problem = "this build holds no CUDA backend";
  return s;
}

void require_gpu(std::string_view name, Device device) {
  raise(errors::Page::no_cuda_in_this_build,
        {{"name", std::string(name)}, {"got", device_string(device)}});
}
void require_hopper(std::string_view name, Device device) {
  require_gpu(name, device);
}

int multiprocessors(Device) noexcept {
  return 0;
}

Memory::Memory(Device device, std::size_t) {
  require_gpu("GPU memory", device);
}
Memory::Memory(Device device, const void*, std::size_t bytes) : Memory(device, bytes) {}
Memory::~Memory() = default;
void Memory::download(void*, std::size_t, std::size_t) const {}

PinnedMemory::PinnedMemory(Device device, std::size_t bytes) : bytes_(bytes) {
  require_gpu("GPU memory", device);
}
PinnedMemory::~PinnedMemory() = default;

Event::Event(Device device) : device_(device) {
  require_gpu("GPU event", device);
}
Event::~Event() = default;
void Event::record(Stream) {}
bool Event::done() const {
  return true;
}
void Event::hold(Stream) const {}

OwnStream::OwnStream(Device device) {
  require_gpu("GPU stream", device);
}
OwnStream::~OwnStream() = default;

BesideCapture::BesideCapture() = default;
BesideCapture::~BesideCapture() = default;

std::uint64_t capture_of(Device, Stream) {
  return 0;
}
void copy_to_device(Device, void*, const void*, std::size_t, Stream) {}
void copy_to_host(Device, void*, const void*, std::size_t, Stream) {}
void synchronize(Device) {}
void synchronize(Device, Stream) {}

std::vector<double> time_calls(Device device, int, const std::function<void()>&) {
  require_gpu("GPU clock", device);
  return {};
}

}  // namespace serinus::gpu
