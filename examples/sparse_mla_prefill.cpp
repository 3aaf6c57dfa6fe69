// The sparse MLA prefill of one layer, as an engine calls it: eight query tokens of DeepSeek-V3.2's
// shape against a pool of FP8 cache rows, each token with the rows that its indexer chose. On the
// GPU where there is one that can, else on the CPU: the call is the same, the tensors' device
// decides.
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <random>
#include <vector>

#include <serinus/error.h>
#include <serinus/sparse_mla.h>

namespace {

constexpr std::int64_t kTokens = 8, kHeads = 128, kRows = 4096, kTopk = 512, kDQk = 576, kDV = 512;

void check(cudaError_t e) {
  if (e == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(e));
  std::exit(1);
}

// Memory where the call shall run, until the program ends. An engine has its own.
template <class T>
T* allocate(serinus::Device device, const std::vector<T>& from) {
  if (device.type == serinus::DeviceType::cpu) {
    static std::deque<std::vector<T>> kept;
    return kept.emplace_back(from).data();
  }
  void* to = nullptr;
  const std::size_t bytes = from.size() * sizeof(T);
  check(cudaMalloc(&to, bytes));
  check(cudaMemcpy(to, from.data(), bytes, cudaMemcpyHostToDevice));
  return static_cast<T*>(to);
}

float bf16_to_float(std::uint16_t v) {
  const std::uint32_t bits = static_cast<std::uint32_t>(v) << 16;
  float f;
  std::memcpy(&f, &bits, sizeof f);
  return f;
}

serinus::SparseMlaPrefill make_call(serinus::Device device) {
  using serinus::DType;
  using serinus::TensorView;
  std::mt19937 random(7);
  // e4m3 codes of +-0.5 to +-1.875; the cache stores values divided by kv_scale.
  const auto codes = [&](std::int64_t n) {
    std::vector<std::uint8_t> v(static_cast<std::size_t>(n));
    for (std::uint8_t& c : v)
      c = static_cast<std::uint8_t>(0x30 + random() % 16 + random() % 2 * 0x80);
    return v;
  };
  std::vector<std::int32_t> indices(kTokens * kTopk);
  for (std::int32_t& i : indices) i = static_cast<std::int32_t>(random() % kRows);
  for (std::size_t i = 500; i < indices.size(); i += kTopk) indices[i] = -1;  // none: ignored
  const std::vector<float> scales = {1.f, 0.5f};
  float* const d_scales = allocate(device, scales);

  serinus::SparseMlaPrefill call;
  call.q = TensorView(allocate(device, codes(kTokens * kHeads * kDQk)), DType::e4m3,
                      {kTokens, kHeads, kDQk}, device);
  call.kv =
      TensorView(allocate(device, codes(kRows * kDQk)), DType::e4m3, {kRows, 1, kDQk}, device);
  call.indices = TensorView(allocate(device, indices), DType::i32, {kTokens, 1, kTopk}, device);
  call.sm_scale = 1 / std::sqrt(static_cast<float>(kDQk));
  call.q_scale = TensorView(d_scales, DType::f32, {1}, device);
  call.kv_scale = TensorView(d_scales + 1, DType::f32, {1}, device);
  call.out = TensorView(allocate(device, std::vector<std::uint16_t>(kTokens * kHeads * kDV)),
                        DType::bf16, {kTokens, kHeads, kDV}, device);
  const std::vector<float> rows(kTokens * kHeads);
  call.max_logits = TensorView(allocate(device, rows), DType::f32, {kTokens, kHeads}, device);
  call.lse = TensorView(allocate(device, rows), DType::f32, {kTokens, kHeads}, device);
  // Few tokens are split over the GPU; the parts meet in a workspace. Its size follows from shapes.
  const std::size_t bytes = serinus::sparse_mla_workspace_bytes(call);
  call.workspace = TensorView(allocate(device, std::vector<std::uint8_t>(bytes)), DType::u8,
                              {static_cast<std::int64_t>(bytes)}, device);
  return call;
}

}  // namespace

int main() try {
  // Whether a GPU would run it is asked before anything is allocated there: shapes and devices
  // suffice.
  const serinus::Device gpu{serinus::DeviceType::cuda, 0};
  serinus::Device device{};
  serinus::SparseMlaPrefill call = make_call(device);
  serinus::SparseMlaPrefill on_gpu = call;
  for (serinus::TensorView* t : {&on_gpu.q, &on_gpu.kv, &on_gpu.indices, &on_gpu.q_scale,
                                 &on_gpu.kv_scale, &on_gpu.out, &on_gpu.max_logits, &on_gpu.lse}) {
    t->device = gpu;
  }
  on_gpu.workspace.device = gpu;
  if (const serinus::CanRun can = serinus::can_run(on_gpu)) {
    device = gpu;
    call = make_call(gpu);
  } else {
    std::printf("not on the GPU: %s (%s)\n", can.message.c_str(), can.error_id.c_str());
  }

  // Asynchronous on a GPU: in the stream that the engine gives, capturable in a graph.
  serinus::sparse_mla_prefill(call, serinus::Stream{});

  std::vector<std::uint16_t> out(kTokens * kHeads * kDV);
  float lse = 0;
  if (device == gpu) {
    check(cudaMemcpy(out.data(), call.out.data, out.size() * 2, cudaMemcpyDeviceToHost));
    check(cudaMemcpy(&lse, call.lse.data, sizeof lse, cudaMemcpyDeviceToHost));
  } else {
    std::memcpy(out.data(), call.out.data, out.size() * 2);
    std::memcpy(&lse, call.lse.data, sizeof lse);
  }
  std::printf("%s: out[0, 0, 0..3] = %.4f %.4f %.4f %.4f, lse[0, 0] = %.4f\n",
              device == gpu ? "GPU" : "CPU", static_cast<double>(bf16_to_float(out[0])),
              static_cast<double>(bf16_to_float(out[1])),
              static_cast<double>(bf16_to_float(out[2])),
              static_cast<double>(bf16_to_float(out[3])), static_cast<double>(lse));
} catch (const serinus::Error& e) {
  std::fprintf(stderr, "error %s: %s\n", e.id().c_str(), e.what());
  return 2;
}
