// Work that keeps a GPU busy, as a forward does: what an overlapped step is measured beside.
#pragma once

#include <cuda_runtime_api.h>

namespace serinus::bench {

/// Arithmetic on every multiprocessor, `rounds` long (some 240 rounds a us).
void busy(float* out, int rounds, cudaStream_t stream);

}  // namespace serinus::bench
