#include "cli/gather_floor.h"
#include "gpu/launch.h"
#include "gpu/ptx/copy.cuh"
#include "gpu/ptx/shared.cuh"

namespace serinus::cli {

namespace {

namespace ptx = gpu::ptx;

constexpr int kThreads = 512, kRows = 128, kStages = 3;

// A CTA a token; blocks of 128 rows, three in flight, four lanes to 64 bytes of a row.
__global__ void __launch_bounds__(kThreads, 1)
    gather_kernel(const std::uint8_t* kv, const std::int32_t* indices, std::int64_t s_q,
                  std::int64_t topk, int d_qk) {
  extern __shared__ std::uint8_t shared[];
  const std::uint32_t base = ptx::shared_address(shared);
  const int row = static_cast<int>(threadIdx.x) / 4, unit = static_cast<int>(threadIdx.x) % 4;
  int stage = 0;
  for (std::int64_t token = blockIdx.x; token < s_q; token += gridDim.x) {
    std::int32_t next = indices[token * topk + row];
    for (std::int64_t at = 0; at < topk; at += kRows) {
      const std::uint8_t* src = kv + std::int64_t{next} * d_qk + unit * 16;
      if (at + kRows < topk) next = indices[token * topk + at + kRows + row];
      const std::uint32_t dst =
          base + static_cast<std::uint32_t>(stage * kRows * d_qk + row * 64 + unit * 16);
      for (int c = 0; c < d_qk / 64; ++c)
        ptx::cp_async_16(dst + static_cast<std::uint32_t>(c * kRows * 64), src + c * 64, true);
      asm volatile("cp.async.commit_group;\ncp.async.wait_group %0;" ::"n"(kStages - 1) : "memory");
      stage = (stage + 1) % kStages;
    }
  }
  ptx::cp_async_wait_all();
}

}  // namespace

void gather_rows(const void* kv, const void* indices, std::int64_t s_q, std::int64_t topk,
                 std::int64_t d_qk, int multiprocessors) {
  gpu::Shape shape;
  shape.grid = static_cast<unsigned>(multiprocessors);
  shape.block = kThreads;
  shape.shared_bytes = static_cast<std::size_t>(kStages * kRows * d_qk);
  gpu::launch("gather_rows", gather_kernel, shape, {}, static_cast<const std::uint8_t*>(kv),
              static_cast<const std::int32_t*>(indices), s_q, topk, static_cast<int>(d_qk));
}

}  // namespace serinus::cli
