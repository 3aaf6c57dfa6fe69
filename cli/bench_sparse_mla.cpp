// The Hopper prefill, timed beside cuBLASLt's FP8 GEMM of 8192^3 in the same run. Data are unit
// normal, indices distinct within a token; the error is that of sampled tokens against float64.
//
// All large kernels meet the card's power limit, so its clock, and with it every rate, depends on
// what ran before. Hence two measurements a row. "Burst": after a pause, twelve turns of three
// launches each, of which the first does not count: what a card does that has just begun to work.
// "Steady": pairs of single launches after half a second of the same, all at one clock.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <serinus/sparse_mla.h>

#include "base/dtypes.h"
#include "base/parallel.h"
#include "cli/bench.h"
#include "cli/card_watch.h"
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

using Work = std::vector<std::function<void()>>;

/// Microseconds of `launches` of each function in turn, the first `skipped` of them left out.
void take_turns(Device device, const Work& work, int launches, int skipped,
                std::vector<std::vector<double>>& times) {
  times.resize(work.size());
  for (std::size_t f = 0; f < work.size(); ++f) {
    const std::vector<double> us = gpu::time_calls(device, launches, work[f]);
    times[f].insert(times[f].end(), us.begin() + skipped, us.end());
  }
}

/// Medians of each function.
struct Measured {
  std::vector<double> us;
  CardWatch::State card;
};
Measured medians(std::vector<std::vector<double>> times, CardWatch* watch) {
  Measured m;
  for (auto& t : times) m.us.push_back(median(std::move(t)));
  if (watch != nullptr) m.card = watch->since_last();
  return m;
}

Measured burst(Device device, int rounds, const Work& work, CardWatch* watch) {
  std::vector<std::vector<double>> times, ignored;
  take_turns(device, work, 1, 0, ignored);
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  if (watch != nullptr) watch->since_last();
  for (int round = 0; round < rounds; ++round) take_turns(device, work, 3, 1, times);
  return medians(std::move(times), watch);
}

Measured steady(Device device, int rounds, const Work& work, CardWatch* watch) {
  std::vector<std::vector<double>> times, ignored;
  const auto begin = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(500))
    take_turns(device, work, 1, 0, ignored);
  if (watch != nullptr) watch->since_last();
  for (int round = 0; round < 2 * rounds; ++round) take_turns(device, work, 1, 0, times);
  return medians(std::move(times), watch);
}

Json measure(const Row& row, const BenchOptions& options, const gpu::DeviceInfo& gpu, Fp8Gemm* gemm,
             CardWatch* watch) {
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

  Work work = {[&] { sparse_mla_prefill(args); }};
  if (gemm != nullptr) work.emplace_back([&] { gemm->run(); });
  const bool gather_bound = row.h_q < 64;
  if (gather_bound) {
    work.emplace_back([&] {
      gather_rows(d_kv.data(), d_indices.data(), row.s_q, row.topk, row.d_qk, gpu.multiprocessors);
    });
  }
  const Measured cold = burst(cuda, options.rounds, work, watch),
                 warm = steady(cuda, options.rounds, work, watch);

  Squares squares;
  // Not the last tokens of many, which are summed in parts: they are not typical.
  for (const std::int64_t token : {std::int64_t{0}, row.s_q / 3, row.s_q * 2 / 3}) {
    std::vector<std::uint16_t> got(static_cast<std::size_t>(row.h_q) * 512);
    out.download(got.data(), got.size() * 2, static_cast<std::size_t>(token) * got.size() * 2);
    const Squares s = compare_token(row, &q[static_cast<std::size_t>(token * row.h_q * row.d_qk)],
                                    kv, &indices[static_cast<std::size_t>(token * row.topk)], got);
    squares.difference += s.difference;
    squares.reference += s.reference;
  }
  const auto rounded = [](double v, double per_unit) {
    return std::round(v * per_unit) / per_unit;
  };
  Json j = {{"name", row.name},
            {"s_q", row.s_q},
            {"s_kv", row.s_kv},
            {"h_q", row.h_q},
            {"d_qk", row.d_qk},
            {"topk", row.topk},
            {"median_us", rounded(cold.us[0], 1e2)},
            {"tflops", rounded(row.flop() / cold.us[0] * 1e-6, 1e1)},
            {"steady_us", rounded(warm.us[0], 1e2)}};
  if (gemm != nullptr) {
    const auto ratio = [&](const Measured& m) {
      return rounded(row.flop() / m.us[0] / (Fp8Gemm::kFlop / m.us[1]), 1e4);
    };
    j["ratio_to_gemm"] = ratio(cold);
    j["steady_ratio_to_gemm"] = ratio(warm);
    j["gemm_tflops"] = rounded(Fp8Gemm::kFlop / cold.us[1] * 1e-6, 1e1);
    j["steady_gemm_tflops"] = rounded(Fp8Gemm::kFlop / warm.us[1] * 1e-6, 1e1);
  }
  if (gather_bound) {
    j["gather_us"] = rounded(cold.us.back(), 1e2);
    j["ratio_to_gather"] = rounded(cold.us[0] / cold.us.back(), 1e3);
    j["steady_ratio_to_gather"] = rounded(warm.us[0] / warm.us.back(), 1e3);
  }
  if (watch != nullptr) {
    j["sm_mhz"] = cold.card.sm_mhz;
    j["steady_sm_mhz"] = warm.card.sm_mhz;
    j["steady_watts"] = warm.card.watts;
  }
  j["error"] = rounded(std::sqrt(squares.difference / squares.reference), 1e5);
  j["launches"] = 2 * options.rounds;
  j["device"] = gpu.name;
  j["clock_mhz"] = gpu.clock_khz / 1000;
  j["commit"] = options.commit;
  return j;
}

void print_header(const gpu::DeviceInfo& gpu, bool with_gemm) {
  fmt::print("{}; medians, launches in turns with cuBLASLt's FP8 GEMM of 8192^3{}\n", gpu.name,
             with_gemm ? "" : " (which this machine lacks: no ratios)");
  fmt::print(
      "| s_q | s_kv | h_q | d_qk | topk | µs | TFLOPS | of GEMM | x gather | steady: µs | of GEMM "
      "| "
      "x gather | SM MHz | W | error |\n");
  fmt::print("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
}

void print_row(const Json& j) {
  const auto number = [&](const char* name, int digits) {
    return j.contains(name) ? fmt::format("{:.{}f}", j[name].get<double>(), digits) : std::string();
  };
  fmt::print("| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |\n",
             number("s_q", 0), number("s_kv", 0), number("h_q", 0), number("d_qk", 0),
             number("topk", 0), number("median_us", 1), number("tflops", 0),
             number("ratio_to_gemm", 2), number("ratio_to_gather", 2), number("steady_us", 1),
             number("steady_ratio_to_gemm", 2), number("steady_ratio_to_gather", 2),
             number("steady_sm_mhz", 0), number("steady_watts", 0), number("error", 4));
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
  const auto watch = CardWatch::start(options.device);
  Json all = Json::array();
  if (!options.json) print_header(gpu, gemm != nullptr);
  for (const Row& row : kRows) {
    if (std::string(row.name).find(options.rows) == std::string::npos) continue;
    all.push_back(measure(row, options, gpu, gemm.get(), watch.get()));
    if (!options.json) print_row(all.back());
    if (!options.out.empty()) write_row(options.out, all.back());
  }
  if (options.json) fmt::print("{}\n", all.dump(2));
}

}  // namespace serinus::cli
