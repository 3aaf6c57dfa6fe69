// A canary over a pool on a GPU, its moments inside the graph of a decode step: docs/attach.md.
#include <cuda_runtime.h>

#include <cstdio>
#include <vector>

#include <serinus/canary_config.h>
#include <serinus/canary_cuda.h>

using namespace serinus;

constexpr Device kGpu{DeviceType::cuda, 0};
constexpr std::int64_t kSlots = 128, kColumns = 64;
constexpr canary::Owner kRequest = 7;

template <class T>
T* on_gpu(std::size_t n) {
  T* p = nullptr;
  cudaMalloc(&p, n * sizeof(T));
  cudaMemset(p, 0, n * sizeof(T));
  return p;
}

int main() {
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess) return std::puts("no GPU here"), 0;
  canary::Monitor monitor = canary::make_monitor(canary::read_config());
  canary::PoolSpec pool;  // where the buffers lie is all that differs from a pool on the CPU
  pool.layout = kv_layout("fp8_656");
  pool.num_slots = kSlots;
  pool.device = kGpu;
  auto* const kv = on_gpu<std::uint8_t>(kSlots * 656);
  pool.buffers = {{kv, kSlots * 656, 0}};
  monitor.add_pool(pool);

  // The buffers that the model's graph reads anyway: one request, a token a step.
  auto* const words = on_gpu<std::int64_t>(6);  // row, prefix, extend, token, position, slot
  auto* const owner = on_gpu<std::uint32_t>(1);
  auto* const table = on_gpu<std::int32_t>(2 * kColumns);
  const auto word = [&](int i) { return TensorView(words + i, DType::i64, {1}, kGpu); };
  canary::cuda::DeviceBatch batch{.rows = word(0),
                                  .prefix_lens = word(1),
                                  .extend_lens = word(2),
                                  .owners = {owner, DType::u32, {1}, kGpu},
                                  .req_to_token = {table, DType::i32, {2, kColumns}, kGpu},
                                  .input_ids = word(3),
                                  .positions = word(4),
                                  .out_cache_loc = word(5)};
  auto* const activations = on_gpu<float>(1024);
  const auto forward = [&](cudaStream_t stream) {
    monitor.begin_step(batch, {stream});
    cudaMemsetAsync(activations, 1, 4096, stream);  // the model
    monitor.end_step(batch, {stream});
  };
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  cudaStreamCreate(&stream);
  for (std::int64_t n = 0; n < 20; ++n) {
    const std::int64_t slot = 100 - n, now[6] = {1, n, 1, 1000 + n, n, slot};
    const auto cell = static_cast<std::int32_t>(slot);
    cudaMemcpy(words, now, sizeof now, cudaMemcpyHostToDevice);
    cudaMemcpy(owner, &kRequest, sizeof kRequest, cudaMemcpyHostToDevice);
    cudaMemcpy(table + kColumns + n, &cell, sizeof cell, cudaMemcpyHostToDevice);
    monitor.on_alloc(0, std::vector{slot}, kRequest);
    if (n == 12) cudaMemset(kv + 95 * 656 + 17, 1, 1);  // a stray write into token 5
    if (n == 0) {
      forward(stream);  // once without a graph, so that all memory is there
      cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
      forward(stream);
      cudaStreamEndCapture(stream, &graph);
      cudaGraphInstantiate(&exec, graph, 0);
    } else {
      monitor.begin_replay(batch, {stream});  // what was announced since
      cudaGraphLaunch(exec, stream);
    }
    cudaStreamSynchronize(stream);  // only because this example fills the buffers again
  }
  monitor.flush();
  for (const canary::Violation& v : monitor.poll()) std::puts(to_text(v, "kv").c_str());
  return monitor.stats().violations == 1 ? 0 : 1;  // kv_bytes at slot 95, of request 7
}
