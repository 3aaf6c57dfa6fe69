// The CPU backend's rate on one thread against OpenBLAS's own sgemm, in one run:
//
//   bench_sparse_mla [--json FILE] [--seconds N]
//
// The work is h_q 64, d_qk 576, topk 2048 over rows scattered in 151 MB; sgemm is 2048 x 64 x 576
// with warm operands. FLOP = 2 s_q h_q topk (d_qk + 512). Rounds of both take turns, so that a busy
// machine slows both; medians of the rounds.
#include <cblas.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <random>
#include <string>
#include <vector>

#include "bench/arguments.h"
#include "bench/figures.h"
#include "sparse_mla/cpu/kernels.h"

namespace {

using namespace serinus;

constexpr std::int64_t kHeads = 64, kDQk = 576, kTopk = 2048, kRows = 262144, kTokens = 8;

// Of this thread alone: what others do on the machine does not count.
double cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

double seconds_of(const auto& work) {
  const double begin = cpu_seconds();
  work();
  return cpu_seconds() - begin;
}

double median(std::vector<double> x) {
  std::ranges::sort(x);
  return x[x.size() / 2];
}

// Codes of unit-normal values, near enough: any finite code.
std::vector<std::uint8_t> random_codes(std::size_t n, std::mt19937& random) {
  std::vector<std::uint8_t> codes(n);
  for (std::uint8_t& c : codes) {
    c = static_cast<std::uint8_t>((random() & 0x80u) | (0x28u + random() % 0x18u));
  }
  return codes;
}

}  // namespace

int main(int argc, char** argv) {
  // An inherited choice of kernel can halve sgemm: OpenBLAS is to take its best one. It reads the
  // variables when it is loaded, so the next start must be without them.
  for (const char* name : {"OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"}) {
    // NOLINTNEXTLINE(concurrency-mt-unsafe): nothing sets the environment
    if (std::getenv(name) == nullptr) continue;
    std::fprintf(stderr, "unset %s first: it changes OpenBLAS's kernel\n", name);
    return 2;
  }
  const serinus::bench::Arguments arguments(argc, argv, {"--json", "--seconds"});
  if (!arguments.fine()) return 2;
  const std::string json = arguments.text("--json");
  const double budget = arguments.count("--seconds", 20);
  openblas_set_num_threads(1);

  std::mt19937 random(1);
  std::vector<std::uint8_t> q = random_codes(kTokens * kHeads * kDQk, random);
  std::vector<std::uint8_t> kv = random_codes(kRows * kDQk + 64, random);
  std::vector<std::int32_t> indices(kTokens * kTopk);
  for (std::int32_t& i : indices) i = static_cast<std::int32_t>(random() % kRows);
  std::vector<std::uint16_t> out(kTokens * kHeads * 512);
  std::vector<float> max_logits(kTokens * kHeads), lse(kTokens * kHeads);
  const float one = 1;
  sparse_mla::Params p;
  p.s_q = kTokens;
  p.s_kv = kRows;
  p.h_q = kHeads;
  p.d_qk = kDQk;
  p.topk = kTopk;
  p.q = q.data();
  p.stride_q_s_q = kHeads * kDQk;
  p.stride_q_h_q = kDQk;
  p.kv = kv.data();
  p.stride_kv_s_kv = kDQk;
  p.indices = indices.data();
  p.stride_indices_s_q = kTopk;
  p.sm_scale = 1 / std::sqrt(static_cast<float>(kDQk));
  p.q_scale = p.kv_scale = &one;
  p.out = out.data();
  p.max_logits = max_logits.data();
  p.lse = lse.data();

  constexpr int kM = 2048, kN = 64, kK = 576;
  std::vector<float> a(kM * kK), b(kN * kK), c(kM * kN);
  for (float& x : a) x = static_cast<float>(random() % 256) / 256;
  for (float& x : b) x = static_cast<float>(random() % 256) / 256;
  const auto sgemm = [&] {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, kM, kN, kK, 1, a.data(), kK, b.data(), kK,
                0, c.data(), kN);
  };

  // The fastest path also with P in one bf16, where that makes a difference.
  struct Contender {
    std::string name;
    const sparse_mla::Kernels* path;
    bool p_bf16;
    bench::Goal goal;
  };
  std::vector<Contender> contenders;
  bool first_f32 = true;
  for (const sparse_mla::Kernels* path : sparse_mla::cpu_paths()) {
    if (path == sparse_mla::avx512_bf16_path()) {
      contenders.push_back({path->name, path, false, bench::at_least(1.5)});
      contenders.push_back(
          {fmt::format("{}, P bf16", path->name), path, true, bench::at_least(1.5)});
    } else {
      contenders.push_back(
          {path->name, path, false, first_f32 ? bench::at_least(0.8) : bench::Goal{}});
      first_f32 = false;
    }
  }
  std::vector<std::vector<double>> times(contenders.size());
  std::vector<double> sgemm_times;
  sgemm();
  for (double spent = 0; spent < budget;) {
    spent += seconds_of([&] {
      for (int i = 0; i < 20; ++i) sgemm_times.push_back(seconds_of(sgemm));
      for (std::size_t i = 0; i < contenders.size(); ++i) {
        if (i > 2 && times[i].size() >= 3) continue;  // the slow ones need no precision
        p.p_bf16 = contenders[i].p_bf16;
        times[i].push_back(seconds_of([&] { sparse_mla::run_cpu_on(*contenders[i].path, p, 1); }));
      }
    });
  }
  const double sgemm_rate = 2.0 * kM * kN * kK / median(sgemm_times) * 1e-9;
  const double flop = 2.0 * kTokens * kHeads * kTopk * (kDQk + 512);
  fmt::print("OpenBLAS core {}: sgemm {}x{}x{} {:.1f} GFLOPS\n", openblas_get_corename(), kM, kN,
             kK, sgemm_rate);
  bench::Figures figures;
  figures.add("sgemm", sgemm_rate, "GFLOPS");
  for (std::size_t i = 0; i < contenders.size(); ++i) {
    const double rate = flop / median(times[i]) * 1e-9;
    figures.add(contenders[i].name + " / sgemm", rate / sgemm_rate, "x", contenders[i].goal,
                fmt::format("{:.1f} GFLOPS ({} rounds)", rate, times[i].size()));
  }
  return figures.write(json) ? 0 : 3;
}
