// The Hopper prefill, timed beside cuBLASLt's FP8 GEMM of 8192^3 in the same run. Data are unit
// normal, indices distinct within a token; the error is that of sampled tokens against float64.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <serinus/sparse_mla.h>

#include "base/dtypes.h"
#include "base/parallel.h"
#include "cli/bench.h"
#include "cli/fp8_gemm.h"
#include "cli/gather_floor.h"
#include "cli/report_file.h"
#include "gpu/device.h"
#include "gpu/memory.h"

namespace serinus::cli {

namespace {

using Json = nlohmann::ordered_json;

/// Unit-normal e4m3 codes, drawn from a table of 65536.
std::vector<std::uint8_t> normal_codes(std::int64_t n, std::uint64_t seed) {
  std::vector<std::uint8_t> table(65536);
  std::mt19937 random(static_cast<std::uint32_t>(seed));
  std::normal_distribution<float> normal;
  for (std::uint8_t& c : table) c = e4m3_from_float(normal(random));
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(n));
  std::uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (std::size_t i = 0; i < codes.size(); i += 4) {
    std::uint64_t z = state += 0x9e3779b97f4a7c15u;  // splitmix64
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    for (std::size_t j = i; j < std::min(i + 4, codes.size()); ++j, z >>= 16)
      codes[j] = table[z & 0xffff];
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

struct Row {
  const char* name;
  std::int64_t s_q, s_kv, h_q, d_qk, topk;
  double flop() const {
    return 2.0 * static_cast<double>(s_q * h_q * topk) * static_cast<double>(d_qk + 512);
  }
};
constexpr Row kRows[] = {
    {"v32_8k", 4096, 8192, 128, 576, 2048},   {"v32_32k", 4096, 32768, 128, 576, 2048},
    {"v32_64k", 4096, 65536, 128, 576, 2048}, {"v32_128k", 4096, 131072, 128, 576, 2048},
    {"h64_32k", 4096, 32768, 64, 576, 2048},  {"v4_8k", 4096, 8192, 64, 512, 512},
    {"v4_32k", 4096, 32768, 64, 512, 512},    {"tokens16", 16, 32768, 128, 576, 2048},
    {"tokens64", 64, 32768, 128, 576, 2048},  {"h8", 4096, 32768, 8, 576, 2048},
    {"h16", 4096, 32768, 16, 576, 2048},      {"h32", 4096, 32768, 32, 576, 2048},
};

/// Squares of one token: of out - reference, and of the reference, in float64.
struct Squares {
  double difference = 0, reference = 0;
};
Squares compare_token(const Row& row, const std::uint8_t* q, const std::vector<std::uint8_t>& kv,
                      const std::int32_t* indices, const std::vector<std::uint16_t>& out) {
  std::vector<float> value(256);
  for (std::size_t c = 0; c < value.size(); ++c)
    value[c] = e4m3_to_float(static_cast<std::uint8_t>(c));
  const auto d_qk = static_cast<std::size_t>(row.d_qk);
  std::vector<Squares> of_heads(static_cast<std::size_t>(row.h_q));
  parallel_for(0, row.h_q, 1, [&](std::int64_t begin, std::int64_t end) {
    for (auto h = static_cast<std::size_t>(begin); h < static_cast<std::size_t>(end); ++h) {
      std::vector<double> logits(static_cast<std::size_t>(row.topk)), want(512);
      for (std::size_t j = 0; j < logits.size(); ++j) {
        const std::uint8_t* k = &kv[static_cast<std::size_t>(indices[j]) * d_qk];
        double dot = 0;
        for (std::size_t i = 0; i < d_qk; ++i)
          dot += static_cast<double>(value[q[h * d_qk + i]] * value[k[i]]);
        logits[j] = dot / std::sqrt(static_cast<double>(row.d_qk));
      }
      const double max = *std::max_element(logits.begin(), logits.end());
      double sum = 0;
      for (std::size_t j = 0; j < logits.size(); ++j) {
        const double w = std::exp(logits[j] - max);
        const std::uint8_t* v = &kv[static_cast<std::size_t>(indices[j]) * d_qk];
        sum += w;
        for (std::size_t c = 0; c < 512; ++c) want[c] += w * static_cast<double>(value[v[c]]);
      }
      for (std::size_t c = 0; c < 512; ++c) {
        const double w = want[c] / sum, got = static_cast<double>(bf16_to_float(out[h * 512 + c]));
        of_heads[h].difference += (got - w) * (got - w);
        of_heads[h].reference += w * w;
      }
    }
  });
  Squares all;
  for (const Squares& s : of_heads) {
    all.difference += s.difference;
    all.reference += s.reference;
  }
  return all;
}

double median(std::vector<double> times) {
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

/// Median microseconds of each function, launched three by three in turns; the first of each three,
/// which still feels its predecessor, does not count.
std::vector<double> interleaved(Device device, int rounds,
                                const std::vector<std::function<void()>>& functions) {
  std::vector<std::vector<double>> times(functions.size());
  for (int round = -1; round < rounds; ++round) {
    for (std::size_t f = 0; f < functions.size(); ++f) {
      const std::vector<double> us = gpu::time_calls(device, 3, functions[f]);
      if (round >= 0) times[f].insert(times[f].end(), us.begin() + 1, us.end());
    }
  }
  std::vector<double> medians;
  for (auto& t : times) medians.push_back(median(std::move(t)));
  return medians;
}

Json measure(const Row& row, const BenchOptions& options, const gpu::DeviceInfo& gpu,
             Fp8Gemm* gemm) {
  const Device cuda{DeviceType::cuda, gpu.index};
  const auto q = normal_codes(row.s_q * row.h_q * row.d_qk, 3);
  const auto kv = normal_codes(row.s_kv * row.d_qk, 4);
  const auto indices = distinct_indices(row.s_q, row.s_kv, row.topk);
  const auto rows = static_cast<std::size_t>(row.s_q * row.h_q);
  const float one = 1;
  const gpu::Memory d_q(cuda, q.data(), q.size()), d_kv(cuda, kv.data(), kv.size()),
      d_indices(cuda, indices.data(), indices.size() * 4), scale(cuda, &one, 4),
      out(cuda, rows * 1024), max_logits(cuda, rows * 4), lse(cuda, rows * 4);
  SparseMlaPrefill args;
  args.q = TensorView(d_q.data(), DType::e4m3, {row.s_q, row.h_q, row.d_qk}, cuda);
  args.kv = TensorView(d_kv.data(), DType::e4m3, {row.s_kv, 1, row.d_qk}, cuda);
  args.indices = TensorView(d_indices.data(), DType::i32, {row.s_q, 1, row.topk}, cuda);
  args.sm_scale = 1 / std::sqrt(static_cast<float>(row.d_qk));
  args.q_scale = args.kv_scale = TensorView(scale.data(), DType::f32, {1}, cuda);
  args.out = TensorView(out.data(), DType::bf16, {row.s_q, row.h_q, 512}, cuda);
  args.max_logits = TensorView(max_logits.data(), DType::f32, {row.s_q, row.h_q}, cuda);
  args.lse = TensorView(lse.data(), DType::f32, {row.s_q, row.h_q}, cuda);
  const gpu::Memory workspace(cuda, sparse_mla_workspace_bytes(args));
  args.workspace =
      TensorView(workspace.data(), DType::u8, {static_cast<std::int64_t>(workspace.bytes())}, cuda);

  std::vector<std::function<void()>> functions = {[&] { sparse_mla_prefill(args); }};
  if (gemm != nullptr) functions.emplace_back([&] { gemm->run(); });
  const bool gather_bound = row.h_q < 64;
  if (gather_bound) {
    functions.emplace_back([&] {
      gather_rows(d_kv.data(), d_indices.data(), row.s_q, row.topk, row.d_qk, gpu.multiprocessors);
    });
  }
  const std::vector<double> us = interleaved(cuda, options.rounds, functions);

  Squares squares;
  for (const std::int64_t token : {std::int64_t{0}, row.s_q / 2, row.s_q - 1}) {
    std::vector<std::uint16_t> got(static_cast<std::size_t>(row.h_q) * 512);
    out.download(got.data(), got.size() * 2, static_cast<std::size_t>(token) * got.size() * 2);
    const Squares s = compare_token(row, &q[static_cast<std::size_t>(token * row.h_q * row.d_qk)],
                                    kv, &indices[static_cast<std::size_t>(token * row.topk)], got);
    squares.difference += s.difference;
    squares.reference += s.reference;
  }
  const auto rounded = [](double v, double unit) { return std::round(v / unit) * unit; };
  Json j = {{"name", row.name},
            {"s_q", row.s_q},
            {"s_kv", row.s_kv},
            {"h_q", row.h_q},
            {"d_qk", row.d_qk},
            {"topk", row.topk},
            {"median_us", rounded(us[0], 0.01)},
            {"tflops", rounded(row.flop() / us[0] * 1e-6, 0.1)}};
  if (gemm != nullptr) {
    j["ratio_to_gemm"] = rounded(row.flop() / us[0] / (Fp8Gemm::kFlop / us[1]), 1e-4);
    j["gemm_tflops"] = rounded(Fp8Gemm::kFlop / us[1] * 1e-6, 0.1);
  }
  if (gather_bound) {
    j["gather_us"] = rounded(us.back(), 0.01);
    j["ratio_to_gather"] = rounded(us[0] / us.back(), 1e-3);
  }
  j["error"] = rounded(std::sqrt(squares.difference / squares.reference), 1e-5);
  j["launches"] = 2 * options.rounds;
  j["device"] = gpu.name;
  j["clock_mhz"] = gpu.clock_khz / 1000;
  j["commit"] = options.commit;
  return j;
}

void print_header(const gpu::DeviceInfo& gpu, bool with_gemm) {
  fmt::print("{}; medians, launches in turns with cuBLASLt's FP8 GEMM of 8192^3{}\n", gpu.name,
             with_gemm ? "" : " (which this machine lacks: no ratios)");
  fmt::print("| s_q | s_kv | h_q | d_qk | topk | µs | TFLOPS | of GEMM | x gather | error |\n");
  fmt::print("|---|---|---|---|---|---|---|---|---|---|\n");
}

void print_row(const Json& j) {
  const auto ratio = [&](const char* name) {
    return j.contains(name) ? fmt::format("{:.2f}", j[name].get<double>()) : std::string();
  };
  fmt::print("| {} | {} | {} | {} | {} | {:.1f} | {:.0f} | {} | {} | {:.4f} |\n",
             j["s_q"].get<int>(), j["s_kv"].get<int>(), j["h_q"].get<int>(), j["d_qk"].get<int>(),
             j["topk"].get<int>(), j["median_us"].get<double>(), j["tflops"].get<double>(),
             ratio("ratio_to_gemm"), ratio("ratio_to_gather"), j["error"].get<double>());
  std::fflush(stdout);
}

void write_row(const std::string& dir, const Json& j) {
  ReportFile file(dir + "/sparse_mla-" + j["name"].get<std::string>() + ".json");
  file.write(j.dump() + "\n");
  file.finish();
}

}  // namespace

void bench_sparse_mla(const BenchOptions& options) {
  const Device cuda{DeviceType::cuda, options.device};
  gpu::require_hopper("serinus bench sparse_mla", cuda);
  const gpu::Survey survey = gpu::survey();
  const gpu::DeviceInfo& gpu = survey.devices[static_cast<std::size_t>(options.device)];
  constexpr auto kCodes = static_cast<std::int64_t>(Fp8Gemm::kN * Fp8Gemm::kN);
  const auto gemm = Fp8Gemm::load(cuda, normal_codes(kCodes, 1), normal_codes(kCodes, 2));
  Json all = Json::array();
  if (!options.json) print_header(gpu, gemm != nullptr);
  for (const Row& row : kRows) {
    if (std::string(row.name).find(options.rows) == std::string::npos) continue;
    all.push_back(measure(row, options, gpu, gemm.get()));
    if (!options.json) print_row(all.back());
    if (!options.out.empty()) write_row(options.out, all.back());
  }
  if (options.json) fmt::print("{}\n", all.dump(2));
}

}  // namespace serinus::cli
