// The Hopper prefill, timed beside cuBLASLt's FP8 GEMM of 8192^3 in the same run.
//
//   sparse_mla_gpu [--json DIR] [--commit C] [--rows TEXT] [--rounds N]
//
// Large kernels on this card meet its power limit, so that TFLOPS move with its heat: the ratio to
// the GEMM, interleaved launch by launch, is what can be compared. Data are unit normal, indices
// distinct within a token; the error is that of sampled tokens against float64.
#include <cublasLt.h>
#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <serinus/sparse_mla.h>

#include "base/dtypes.h"
#include "bench/gather_floor.h"
#include "gpu/device.h"

namespace {

using namespace serinus;

void check(cudaError_t e) {
  if (e == cudaSuccess) return;
  fmt::print(stderr, "CUDA: {}\n", cudaGetErrorString(e));
  std::exit(1);
}
void check(cublasStatus_t s) {
  if (s == CUBLAS_STATUS_SUCCESS) return;
  fmt::print(stderr, "cuBLASLt: {}\n", cublasLtGetStatusString(s));
  std::exit(1);
}

class Buffer {
 public:
  explicit Buffer(std::size_t bytes) {
    check(cudaMalloc(&data_, std::max<std::size_t>(bytes, 16)));
  }
  template <class T>
  explicit Buffer(const std::vector<T>& v) : Buffer(v.size() * sizeof(T)) {
    check(cudaMemcpy(data_, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  ~Buffer() { cudaFree(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  void* get() const { return data_; }
  template <class T>
  std::vector<T> part(std::size_t first, std::size_t n) const {
    std::vector<T> v(n);
    check(cudaMemcpy(v.data(), static_cast<const T*>(data_) + first, n * sizeof(T),
                     cudaMemcpyDeviceToHost));
    return v;
  }

 private:
  void* data_ = nullptr;
};

/// Unit-normal e4m3 codes, drawn from a table of 65536.
std::vector<std::uint8_t> normal_codes(std::size_t n, std::uint64_t seed) {
  std::vector<std::uint8_t> table(65536);
  std::mt19937 random(static_cast<std::uint32_t>(seed));
  std::normal_distribution<float> normal;
  for (std::uint8_t& c : table) c = e4m3_from_float(normal(random));
  std::vector<std::uint8_t> codes(n);
  std::uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (std::size_t i = 0; i < n; i += 4) {
    std::uint64_t z = state += 0x9e3779b97f4a7c15u;  // splitmix64
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    for (std::size_t j = i; j < std::min(i + 4, n); ++j, z >>= 16) codes[j] = table[z & 0xffff];
  }
  return codes;
}

/// topk different rows a token: the head of a permutation that is shuffled on from token to token.
std::vector<std::int32_t> distinct_indices(std::int64_t s_q, std::int64_t s_kv, std::int64_t topk) {
  std::vector<std::int32_t> permutation(static_cast<std::size_t>(s_kv));
  std::iota(permutation.begin(), permutation.end(), 0);
  std::vector<std::int32_t> indices;
  indices.reserve(static_cast<std::size_t>(s_q * topk));
  std::mt19937_64 random(11);
  for (std::int64_t t = 0; t < s_q; ++t) {
    for (std::int64_t i = 0; i < topk; ++i) {
      const auto j = i + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(s_kv - i));
      std::swap(permutation[static_cast<std::size_t>(i)], permutation[static_cast<std::size_t>(j)]);
    }
    indices.insert(indices.end(), permutation.begin(), permutation.begin() + topk);
  }
  return indices;
}

/// cuBLASLt's e4m3 x e4m3 -> bf16 of 8192^3.
class Gemm {
 public:
  static constexpr std::uint64_t kN = 8192;
  static constexpr double kFlop = 2.0 * kN * kN * kN;

  Gemm()
      : a_(normal_codes(kN * kN, 1)), b_(normal_codes(kN * kN, 2)), c_(kN * kN * 2), work_(kWork) {
    check(cublasLtCreate(&lt_));
    check(cublasLtMatmulDescCreate(&op_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    const cublasOperation_t transposed = CUBLAS_OP_T;
    check(cublasLtMatmulDescSetAttribute(op_, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                         sizeof transposed));
    check(cublasLtMatrixLayoutCreate(&in_, CUDA_R_8F_E4M3, kN, kN, kN));
    check(cublasLtMatrixLayoutCreate(&out_, CUDA_R_16BF, kN, kN, kN));
    cublasLtMatmulPreference_t preference = nullptr;
    check(cublasLtMatmulPreferenceCreate(&preference));
    check(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                               &kWork, sizeof kWork));
    int found = 0;
    check(cublasLtMatmulAlgoGetHeuristic(lt_, op_, in_, in_, out_, out_, preference, 1, &best_,
                                         &found));
    if (found == 0) check(CUBLAS_STATUS_NOT_SUPPORTED);
    cublasLtMatmulPreferenceDestroy(preference);
  }
  void run() {
    const float one = 1, zero = 0;
    check(cublasLtMatmul(lt_, op_, &one, a_.get(), in_, b_.get(), in_, &zero, c_.get(), out_,
                         c_.get(), out_, &best_.algo, work_.get(), kWork, nullptr));
  }

 private:
  static constexpr std::size_t kWork = std::size_t{64} << 20;
  Buffer a_, b_, c_, work_;
  cublasLtHandle_t lt_ = nullptr;
  cublasLtMatmulDesc_t op_ = nullptr;
  cublasLtMatrixLayout_t in_ = nullptr, out_ = nullptr;
  cublasLtMatmulHeuristicResult_t best_{};
};

/// Median microseconds of each function, launched three by three in turns; the first of each three,
/// which still feels its predecessor, does not count.
std::vector<double> interleaved(int rounds, const std::vector<std::function<void()>>& functions) {
  cudaEvent_t events[4];
  for (cudaEvent_t& e : events) check(cudaEventCreate(&e));
  std::vector<std::vector<double>> times(functions.size());
  for (int round = -1; round < rounds; ++round) {
    for (std::size_t f = 0; f < functions.size(); ++f) {
      for (int i = 0; i < 3; ++i) {
        check(cudaEventRecord(events[i]));
        functions[f]();
      }
      check(cudaEventRecord(events[3]));
      check(cudaEventSynchronize(events[3]));
      for (int i = 1; i < 3 && round >= 0; ++i) {
        float ms = 0;
        check(cudaEventElapsedTime(&ms, events[i], events[i + 1]));
        times[f].push_back(1e3 * static_cast<double>(ms));
      }
    }
  }
  for (cudaEvent_t& e : events) cudaEventDestroy(e);
  std::vector<double> medians;
  for (auto& t : times) {
    std::nth_element(t.begin(), t.begin() + static_cast<std::ptrdiff_t>(t.size() / 2), t.end());
    medians.push_back(t[t.size() / 2]);
  }
  return medians;
}

struct Row {
  const char* name;
  std::int64_t s_q, s_kv, h_q, d_qk, topk;
};
constexpr Row kRows[] = {
    {"v32_8k", 4096, 8192, 128, 576, 2048},   {"v32_32k", 4096, 32768, 128, 576, 2048},
    {"v32_64k", 4096, 65536, 128, 576, 2048}, {"v32_128k", 4096, 131072, 128, 576, 2048},
    {"h64_32k", 4096, 32768, 64, 576, 2048},  {"v4_8k", 4096, 8192, 64, 512, 512},
    {"v4_32k", 4096, 32768, 64, 512, 512},    {"tokens16", 16, 32768, 128, 576, 2048},
    {"tokens64", 64, 32768, 128, 576, 2048},  {"h8", 4096, 32768, 8, 576, 2048},
    {"h16", 4096, 32768, 16, 576, 2048},      {"h32", 4096, 32768, 32, 576, 2048},
};

/// |out - reference| / |reference| of one token, in float64.
void add_error(const Row& row, const std::vector<std::uint8_t>& q,
               const std::vector<std::uint8_t>& kv, const std::int32_t* indices, std::int64_t token,
               const std::vector<std::uint16_t>& out, double& difference, double& norm) {
  std::vector<float> value(256);
  for (int c = 0; c < 256; ++c)
    value[static_cast<std::size_t>(c)] = e4m3_to_float(static_cast<std::uint8_t>(c));
  const auto d_qk = static_cast<std::size_t>(row.d_qk);
  std::vector<double> differences(static_cast<std::size_t>(row.h_q)), norms(differences);
  const auto head = [&](std::size_t h) {
    const std::uint8_t* qh = &q[(static_cast<std::size_t>(token * row.h_q) + h) * d_qk];
    std::vector<double> logits(static_cast<std::size_t>(row.topk));
    for (std::size_t j = 0; j < logits.size(); ++j) {
      const std::uint8_t* k = &kv[static_cast<std::size_t>(indices[j]) * d_qk];
      double dot = 0;
      for (std::size_t i = 0; i < d_qk; ++i) dot += static_cast<double>(value[qh[i]] * value[k[i]]);
      logits[j] = dot / std::sqrt(static_cast<double>(row.d_qk));
    }
    const double max = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    std::vector<double> want(512);
    for (std::size_t j = 0; j < logits.size(); ++j) {
      const double w = std::exp(logits[j] - max);
      const std::uint8_t* v = &kv[static_cast<std::size_t>(indices[j]) * d_qk];
      sum += w;
      for (std::size_t c = 0; c < 512; ++c) want[c] += w * static_cast<double>(value[v[c]]);
    }
    for (std::size_t c = 0; c < 512; ++c) {
      const double w = want[c] / sum, got = static_cast<double>(bf16_to_float(out[h * 512 + c]));
      differences[h] += (got - w) * (got - w);
      norms[h] += w * w;
    }
  };
  std::vector<std::thread> threads;
  const std::size_t n = std::max(1u, std::thread::hardware_concurrency());
  for (std::size_t t = 0; t < n; ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t h = t; h < differences.size(); h += n) head(h);
    });
  }
  for (std::thread& t : threads) t.join();
  difference += std::accumulate(differences.begin(), differences.end(), 0.0);
  norm += std::accumulate(norms.begin(), norms.end(), 0.0);
}

struct Options {
  std::string json, commit = "unknown", rows;
  int rounds = 12;
};

void run(const Row& row, const Options& options, const gpu::DeviceInfo& gpu, Gemm& gemm) {
  const Device cuda{DeviceType::cuda, gpu.index};
  const auto q = normal_codes(static_cast<std::size_t>(row.s_q * row.h_q * row.d_qk), 3);
  const auto kv = normal_codes(static_cast<std::size_t>(row.s_kv * row.d_qk), 4);
  const auto indices = distinct_indices(row.s_q, row.s_kv, row.topk);
  const auto rows = static_cast<std::size_t>(row.s_q * row.h_q);
  const Buffer d_q(q), d_kv(kv), d_indices(indices), scales(std::vector<float>{1, 1}),
      out(rows * 1024), max_logits(rows * 4), lse(rows * 4);
  SparseMlaPrefill args;
  args.q = TensorView(d_q.get(), DType::e4m3, {row.s_q, row.h_q, row.d_qk}, cuda);
  args.kv = TensorView(d_kv.get(), DType::e4m3, {row.s_kv, 1, row.d_qk}, cuda);
  args.indices = TensorView(d_indices.get(), DType::i32, {row.s_q, 1, row.topk}, cuda);
  args.sm_scale = 1 / std::sqrt(static_cast<float>(row.d_qk));
  args.q_scale = args.kv_scale = TensorView(scales.get(), DType::f32, {1}, cuda);
  args.out = TensorView(out.get(), DType::bf16, {row.s_q, row.h_q, 512}, cuda);
  args.max_logits = TensorView(max_logits.get(), DType::f32, {row.s_q, row.h_q}, cuda);
  args.lse = TensorView(lse.get(), DType::f32, {row.s_q, row.h_q}, cuda);
  const std::size_t bytes = sparse_mla_workspace_bytes(args);
  const Buffer workspace(bytes);
  args.workspace = TensorView(workspace.get(), DType::u8, {static_cast<std::int64_t>(bytes)}, cuda);

  std::vector<std::function<void()>> functions = {[&] { sparse_mla_prefill(args); },
                                                  [&] { gemm.run(); }};
  const bool small_h = row.h_q < 64;
  if (small_h) {
    functions.emplace_back([&] {
      bench::gather_rows(static_cast<const std::uint8_t*>(d_kv.get()),
                         static_cast<const std::int32_t*>(d_indices.get()), row.s_q, row.topk,
                         row.d_qk, gpu.multiprocessors);
    });
  }
  const std::vector<double> us = interleaved(options.rounds, functions);
  const double flop = 2.0 * static_cast<double>(row.s_q * row.h_q * row.topk * (row.d_qk + 512));
  const double tflops = flop / us[0] * 1e-6, gemm_tflops = Gemm::kFlop / us[1] * 1e-6;

  double difference = 0, norm = 0;
  for (const std::int64_t token : {std::int64_t{0}, row.s_q / 2, row.s_q - 1}) {
    const std::size_t per_token = static_cast<std::size_t>(row.h_q) * 512;
    add_error(row, q, kv, &indices[static_cast<std::size_t>(token * row.topk)], token,
              out.part<std::uint16_t>(static_cast<std::size_t>(token) * per_token, per_token),
              difference, norm);
  }
  const double error = std::sqrt(difference / norm);
  std::string line = fmt::format(
      "{:9} s_q {:5} s_kv {:6} h_q {:3} d_qk {} topk {:4}: {:8.1f} us {:6.0f} TFLOPS, {:.3f} of "
      "GEMM "
      "({:.0f}), error {:.4f}",
      row.name, row.s_q, row.s_kv, row.h_q, row.d_qk, row.topk, us[0], tflops, tflops / gemm_tflops,
      gemm_tflops, error);
  if (small_h) line += fmt::format(", {:.2f} of the gather's {:.1f} us", us[0] / us[2], us[2]);
  fmt::print("{}\n", line);
  std::fflush(stdout);
  if (options.json.empty()) return;
  std::string json = fmt::format(
      "{{\"s_q\": {}, \"s_kv\": {}, \"h_q\": {}, \"d_qk\": {}, \"topk\": {}, \"median_us\": "
      "{:.2f}, "
      "\"tflops\": {:.1f}, \"ratio_to_gemm\": {:.4f}, \"gemm_tflops\": {:.1f}, \"error\": {:.5f}, ",
      row.s_q, row.s_kv, row.h_q, row.d_qk, row.topk, us[0], tflops, tflops / gemm_tflops,
      gemm_tflops, error);
  if (small_h) json += fmt::format("\"gather_us\": {:.2f}, ", us[2]);
  json +=
      fmt::format("\"launches\": {}, \"device\": \"{}\", \"clock_mhz\": {}, \"commit\": \"{}\"}}\n",
                  2 * options.rounds, gpu.name, gpu.clock_khz / 1000, options.commit);
  std::ofstream(options.json + "/sparse_mla-" + row.name + ".json") << json;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string key = argv[i];
    if (key == "--json") options.json = argv[i + 1];
    if (key == "--commit") options.commit = argv[i + 1];
    if (key == "--rows") options.rows = argv[i + 1];
    if (key == "--rounds") options.rounds = std::atoi(argv[i + 1]);
  }
  const gpu::Survey survey = gpu::survey();
  if (survey.devices.empty() || !survey.devices[0].usable) {
    fmt::print(stderr, "no Hopper GPU: {}\n", survey.problem);
    return 1;
  }
  Gemm gemm;
  for (const Row& row : kRows) {
    if (options.rows.empty() || std::string(row.name).find(options.rows) != std::string::npos)
      run(row, options, survey.devices[0], gemm);
  }
}
