// src/gpu/launch.h, to the emulator.
#pragma once

#include <cuda_runtime.h>

#include <stdexcept>
#include <tuple>

#include <serinus/tensor.h>

// A namespace of its own: the library may hold the others.
namespace serinus::gpu::inline emulated {

inline void check_launch(const char* what, cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(what);
}

struct OnDevice {
  explicit OnDevice(Device) {}
  ~OnDevice() {}
};

inline bool runs_as_hopper(const void*) {
  return true;
}

struct Shape {
  dim3 grid, block;
  unsigned cluster = 1;
  std::size_t shared_bytes = 0;
};

template <class... Args, class... Given>
void launch(const char*, void (*kernel)(Args...), const Shape& shape, Stream,
            const Given&... given) {
  check_launch("launch", emulator::failure);
  const auto run = [kernel, shape, args = std::tuple<Args...>(given...)] {
    emulator::run(shape.grid, shape.block, [&] { std::apply(kernel, args); });
  };
  if (emulator::capture != nullptr) {
    emulator::capture->push_back(run);
  } else {
    run();
  }
}

}  // namespace serinus::gpu::inline emulated
