// What a build without CUDA has to say about `serinus bench`.
#include "cli/bench.h"
#include "gpu/device.h"

namespace serinus::cli {

void bench_sparse_mla(const BenchOptions& options) {
  gpu::require_hopper("serinus bench sparse_mla", {DeviceType::cuda, options.device});
}

}  // namespace serinus::cli
