// The two plain things that setting up a pool does to device memory.
#pragma once

#include <cstddef>
#include <span>

#include <serinus/tensor.h>

namespace serinus::canary::cuda {

/// Zeros, in stream order.
void clear(const TensorView& tensor, Stream stream);
/// Copies from host memory that may be gone when this returns.
void upload(void* to, std::span<const std::byte> bytes, Device device, Stream stream);

}  // namespace serinus::canary::cuda
