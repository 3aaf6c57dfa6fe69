// A test problem on the GPU: copies of its inputs, run there, outputs brought back.
#pragma once

#include <cuda_runtime.h>

#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpu/device.h"
#include "tests/gpu/gpu_test.h"
#include "tests/sparse_mla/problem.h"

namespace serinus::testing {

inline void check_cuda(cudaError_t e) {
  if (e != cudaSuccess) throw std::runtime_error(cudaGetErrorString(e));
}

/// Device memory, filled with `poison` before anything is copied in.
class DeviceBuffer {
 public:
  explicit DeviceBuffer(std::size_t bytes, int poison = 0x7f) : bytes_(bytes) {
    check_cuda(cudaMalloc(&data_, bytes + 256));
    check_cuda(cudaMemset(data_, poison, bytes + 256));
  }
  ~DeviceBuffer() { cudaFree(data_); }
  DeviceBuffer(DeviceBuffer&& other) noexcept : data_(other.data_), bytes_(other.bytes_) {
    other.data_ = nullptr;
  }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  std::size_t bytes() const { return bytes_; }
  void fill(int value) const { check_cuda(cudaMemset(data_, value, bytes_)); }
  void upload(const void* from, std::size_t bytes, std::size_t offset = 0) const {
    check_cuda(cudaMemcpy(data() + offset, from, bytes, cudaMemcpyHostToDevice));
  }
  template <class T>
  std::vector<T> download() const {
    std::vector<T> v(bytes_ / sizeof(T));
    check_cuda(cudaMemcpy(v.data(), data_, v.size() * sizeof(T), cudaMemcpyDeviceToHost));
    return v;
  }

 private:
  void* data_ = nullptr;
  std::size_t bytes_;
};

template <class T>
DeviceBuffer to_device(const std::vector<T>& v) {
  DeviceBuffer b(v.size() * sizeof(T));
  b.upload(v.data(), v.size() * sizeof(T));
  return b;
}

/// Holds the inputs of a Problem on the device, dense or with gaps of NaN between rows.
class DeviceProblem {
 public:
  /// Bytes between rows: of a token and of a head in q, of a row in kv. Gaps are e4m3 NaN.
  struct Gaps {
    std::int64_t q_token = 0, q_head = 0, q_start = 0, kv_row = 0;
  };

  explicit DeviceProblem(Problem& problem) : DeviceProblem(problem, Gaps()) {}
  DeviceProblem(Problem& problem, const Gaps& gaps)
      : p(problem),
        q_head_stride(p.shape.d_qk + gaps.q_head),
        q_token_stride(p.shape.h_q * q_head_stride + gaps.q_token),
        q_start(gaps.q_start),
        kv_stride(p.shape.d_qk + gaps.kv_row),
        q(static_cast<std::size_t>(p.shape.s_q * q_token_stride + q_start)),
        kv(static_cast<std::size_t>(p.shape.s_kv * kv_stride)),
        indices(to_device(p.indices)),
        lengths(to_device(p.lengths)),
        sink(to_device(p.sink)),
        scales(to_device(std::vector<float>{p.q_scale, p.kv_scale})),
        out(p.out.size() * 2),
        max_logits(p.max_logits.size() * 4),
        lse(p.lse.size() * 4),
        workspace(workspace_bytes()) {
    const auto d = static_cast<std::size_t>(p.shape.d_qk);
    const auto rows = [](std::int64_t n) { return static_cast<std::size_t>(n); };
    if (p.shape.s_q > 0) {
      // One 2D copy a token would be slow for many; gaps are rare, so take the rows one by one
      // then.
      std::vector<std::uint8_t> host(q.bytes(), 0x7f);
      for (std::int64_t t = 0; t < p.shape.s_q; ++t) {
        for (std::int64_t h = 0; h < p.shape.h_q; ++h) {
          std::memcpy(&host[rows(q_start + t * q_token_stride + h * q_head_stride)],
                      &p.q[rows(t * p.shape.h_q + h) * d], d);
        }
      }
      q.upload(host.data(), host.size());
    }
    if (p.shape.s_kv > 0) {
      check_cuda(cudaMemcpy2D(kv.data(), rows(kv_stride), p.kv.data(), d, d, rows(p.shape.s_kv),
                              cudaMemcpyHostToDevice));
    }
  }

  SparseMlaPrefill args() {
    const Shape& s = p.shape;
    SparseMlaPrefill a = p.args();
    a.q = TensorView(q.data() + q_start, DType::e4m3, {s.s_q, s.h_q, s.d_qk},
                     {q_token_stride, q_head_stride, 1}, kGpu);
    a.kv = TensorView(kv.data(), DType::e4m3, {s.s_kv, 1, s.d_qk}, {kv_stride, kv_stride, 1}, kGpu);
    a.indices = TensorView(indices.data(), DType::i32, {s.s_q, 1, s.topk}, kGpu);
    a.q_scale = TensorView(scales.data(), DType::f32, {1}, kGpu);
    a.kv_scale = TensorView(scales.data() + 4, DType::f32, {1}, kGpu);
    if (a.attn_sink) a.attn_sink = TensorView(sink.data(), DType::f32, {s.h_q}, kGpu);
    if (a.topk_length) a.topk_length = TensorView(lengths.data(), DType::i32, {s.s_q}, kGpu);
    a.out = TensorView(out.data(), DType::bf16, {s.s_q, s.h_q, 512}, kGpu);
    a.max_logits = TensorView(max_logits.data(), DType::f32, {s.s_q, s.h_q}, kGpu);
    a.lse = TensorView(lse.data(), DType::f32, {s.s_q, s.h_q}, kGpu);
    a.workspace = TensorView(workspace.data(), DType::u8,
                             {static_cast<std::int64_t>(workspace.bytes())}, kGpu);
    a.empty_row_lse = empty_row_lse;
    return a;
  }

  /// Poisons the outputs, runs, and brings them back into the Problem.
  void run(Stream stream = {}) {
    poison();
    sparse_mla_prefill(args(), stream);
    check_cuda(cudaStreamSynchronize(static_cast<cudaStream_t>(stream.handle)));
    fetch();
  }
  void poison() {
    p.poison();
    out.upload(p.out.data(), out.bytes());
    max_logits.upload(p.max_logits.data(), max_logits.bytes());
    lse.upload(p.lse.data(), lse.bytes());
    if (workspace.bytes() > 0) workspace.fill(0xff);  // float NaN
    check_cuda(cudaStreamSynchronize(nullptr));  // a stream of a test's own waits for nothing here
  }
  void fetch() {
    p.out = out.download<std::uint16_t>();
    p.max_logits = max_logits.download<float>();
    p.lse = lse.download<float>();
  }

  Problem& p;
  std::int64_t q_head_stride, q_token_stride, q_start, kv_stride;
  DeviceBuffer q, kv, indices, lengths, sink, scales, out, max_logits, lse, workspace;
  EmptyRowLse empty_row_lse = EmptyRowLse::plus_inf;

 private:
  std::size_t workspace_bytes() {
    SparseMlaPrefill a = p.args();
    a.q.device = kGpu;
    return sparse_mla_workspace_bytes(a);
  }
};

}  // namespace serinus::testing
