// `serinus attend`: the sparse MLA prefill on tensors from files.
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>

#include <serinus/sparse_mla.h>

#include "base/checks.h"
#include "base/dtypes.h"
#include "base/parallel.h"
#include "base/raise.h"
#include "cli/choice.h"
#include "cli/commands.h"
#include "cli/tensor_files.h"
#include "gpu/device.h"
#include "gpu/memory.h"
#include "sparse_mla/cpu/kernels.h"
#include "sparse_mla/oracle.h"

namespace serinus::cli {

namespace {

// The arguments that are tensors, by the names that they have everywhere.
constexpr const char* kInputs[] = {"q",        "kv",        "indices",    "q_scale",
                                   "kv_scale", "attn_sink", "topk_length"};

constexpr const char* kNoFile = "what the command line names";

struct Arguments {
  std::string file;
  std::array<std::string, std::size(kInputs)> npy;
  std::optional<float> sm_scale;
  std::string out, example;
  DType p_dtype = DType::f32;
  Device device;
  bool check = false;
  int threads = 0;
};

class Inputs {
 public:
  explicit Inputs(const Arguments& args) : source_(args.file) {
    if (!args.file.empty()) {
      for (Tensor& t : read_safetensors(args.file)) add(std::move(t));
    }
    for (std::size_t i = 0; i < args.npy.size(); ++i) {
      if (args.npy[i].empty()) continue;
      const Tensor t = read_npy(args.npy[i]);
      std::erase_if(tensors_, [&](const Tensor& old) { return old.name() == kInputs[i]; });
      add(Tensor(kInputs[i], t.dtype(), t.shape(), t.bytes()));
    }
    if (source_.empty()) source_ = kNoFile;
  }

  std::optional<TensorView> find(std::string_view name) const {
    for (const Tensor& t : tensors_) {
      if (t.name() == name) return t.view();
    }
    return std::nullopt;
  }

  TensorView get(std::string_view name) const {
    if (const auto found = find(name)) return *found;
    std::string names;
    for (const Tensor& t : tensors_) names += (names.empty() ? "" : ", ") + t.name();
    if (names.empty() && source_ == kNoFile)
      raise(errors::Page::bad_command_line,
            {{"got",
              "attend: FILE, or --q, --kv and --indices, must be given (--example DIR makes "
              "a file to try)"}});
    raise(errors::Page::tensor_missing, {{"name", std::string(name)},
                                         {"file", source_},
                                         {"got", names.empty() ? "nothing" : names}});
  }

 private:
  void add(Tensor t) {
    // uint8 is how FP8 is stored where there is no dtype for it.
    const bool codes = t.dtype() == DType::u8 && (t.name() == "q" || t.name() == "kv");
    // The one KV head may be left out.
    std::vector<std::int64_t> shape = t.shape();
    if ((t.name() == "kv" || t.name() == "indices") && shape.size() == 2) {
      shape.insert(shape.begin() + 1, 1);
    }
    tensors_.emplace_back(t.name(), codes ? DType::e4m3 : t.dtype(), std::move(shape), t.bytes());
  }

  std::string source_;
  std::vector<Tensor> tensors_;
};

std::vector<double> values_of(const Tensor& t) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < t.view().numel(); ++i) {
    values.push_back(t.dtype() == DType::bf16 ? bf16_to_float(t.as<const std::uint16_t>()[i])
                                              : t.as<const float>()[i]);
  }
  return values;
}

bool report(const char* name, double error, double budget) {
  const bool within = error <= budget;
  fmt::print("  {:<11} error {:.2e}, budget {:.2e}: {}\n", name, error, budget,
             within ? "ok" : "OUT OF BUDGET");
  return within;
}

// Infinities and NaN must stand in the same places (else the error is infinite) and count for
// nothing more; the others are kept.
double keep_finite(std::vector<double>& got, std::vector<double>& want) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::isfinite(got[i]) && std::isfinite(want[i])) {
      got[kept] = got[i];
      want[kept++] = want[i];
    } else if (got[i] != want[i] && !(std::isnan(got[i]) && std::isnan(want[i]))) {
      return std::numeric_limits<double>::infinity();
    }
  }
  got.resize(kept);
  want.resize(kept);
  return 0;
}

// What the outputs may be off by, beside the rounding of `out` to bfloat16.
struct Budget {
  double out, max_logits, lse;
};
constexpr double kBf16Budget = 0x1p-9;
constexpr double kLogitBudget = 3e-5;

Budget budget_of(const SparseMlaPrefill& args, Device device) {
  // The tensor cores' sums of FP8 products, and P in e4m3, whose rounding may reach 2^-4 and comes
  // to half of that over a few tokens.
  if (device.type == DeviceType::cuda) return {0x1p-5, 3e-3, 3e-3};
  const double of_p = args.p_dtype == DType::bf16 ? kBf16Budget : 0;
  return {of_p, kLogitBudget, kLogitBudget + of_p};
}

bool check_outputs(const SparseMlaPrefill& args, const Budget& budget, const Tensor& out,
                   const Tensor& max_logits, const Tensor& lse) {
  oracle::Reference want = oracle::prefill(args);
  fmt::print("against float64:\n");
  std::vector<double> got = values_of(out);
  double error = keep_finite(got, want.out);
  if (error == 0) error = oracle::relative_error(got, want.out);
  bool within = report("out", error, kBf16Budget + budget.out);
  const auto logits = [&](const char* name, const Tensor& t, std::vector<double>& reference,
                          double most) {
    std::vector<double> x = values_of(t);
    double worst = keep_finite(x, reference);
    for (std::size_t i = 0; i < x.size(); ++i) {
      worst = std::max(worst, std::abs(x[i] - reference[i]) / (1 + std::abs(reference[i])));
    }
    within &= report(name, worst, most);
  };
  logits("max_logits", max_logits, want.max_logits, budget.max_logits);
  logits("lse", lse, want.lse, budget.lse);
  return within;
}

// Copies the tensors of a call to a GPU, runs it there, and brings the outputs back. Median of a
// few runs, in seconds.
double attend_on(Device device, const SparseMlaPrefill& host) {
  gpu::require_hopper("serinus attend", device);
  std::vector<gpu::Memory> copies;
  copies.reserve(11);
  const auto copy = [&](TensorView view) {
    const auto bytes = static_cast<std::size_t>(view.numel() * size_of(view.dtype));
    view.data = copies.emplace_back(device, view.data, bytes).data();
    view.device = device;
    return view;
  };
  SparseMlaPrefill args = host;
  for (TensorView* t : {&args.q, &args.kv, &args.indices, &args.q_scale, &args.kv_scale, &args.out,
                        &args.max_logits, &args.lse}) {
    *t = copy(*t);
  }
  if (args.attn_sink) args.attn_sink = copy(*args.attn_sink);
  if (args.topk_length) args.topk_length = copy(*args.topk_length);
  const gpu::Memory workspace(device, sparse_mla_workspace_bytes(args));
  args.workspace = TensorView(workspace.data(), DType::u8,
                              {static_cast<std::int64_t>(workspace.bytes())}, device);
  sparse_mla_prefill(args);  // the first launch loads the kernel
  std::vector<double> us = gpu::time_calls(device, 5, [&] { sparse_mla_prefill(args); });
  std::sort(us.begin(), us.end());
  const TensorView* const outputs[] = {&args.out, &args.max_logits, &args.lse};
  const TensorView* const to[] = {&host.out, &host.max_logits, &host.lse};
  for (std::size_t i = 0; i < std::size(outputs); ++i) {
    for (const gpu::Memory& m : copies) {
      if (m.data() == outputs[i]->data) m.download(to[i]->data, m.bytes());
    }
  }
  return us[us.size() / 2] * 1e-6;
}

void write_outputs(const std::string& to, std::span<const Tensor* const> outputs) {
  if (to.ends_with(".safetensors")) {
    write_safetensors(to, outputs);
  } else {
    std::error_code failed;
    std::filesystem::create_directories(to, failed);
    if (failed) {
      raise(errors::Page::tensor_file_not_written, {{"got", to}, {"why", failed.message()}});
    }
    for (const Tensor* t : outputs) {
      write_npy((std::filesystem::path(to) / (t->name() + ".npy")).string(), *t);
    }
  }
  fmt::print("written to {}\n", to);
}

int attend(const Arguments& cli) {
  const Inputs inputs(cli);
  const float one = 1;
  const TensorView unit(const_cast<float*>(&one), DType::f32, {1});  // an input: only read
  SparseMlaPrefill args;
  args.q = inputs.get("q");
  args.kv = inputs.get("kv");
  args.indices = inputs.get("indices");
  args.q_scale = inputs.find("q_scale").value_or(unit);
  args.kv_scale = inputs.find("kv_scale").value_or(unit);
  args.attn_sink = inputs.find("attn_sink");
  args.topk_length = inputs.find("topk_length");
  check_rank("q", args.q, 3, "(s_q, h_q, d_qk)");
  const std::int64_t s_q = args.q.shape[0];
  const std::int64_t h_q = args.q.shape[1];
  const std::int64_t d_qk = args.q.shape[2];
  args.p_dtype = cli.p_dtype;
  args.sm_scale = cli.sm_scale.value_or(1 / std::sqrt(static_cast<float>(d_qk)));
  check_rank("out", TensorView(nullptr, DType::bf16, {s_q, h_q, args.d_v}), 3, "");  // its size
  const Tensor out("out", DType::bf16, {s_q, h_q, args.d_v});
  const Tensor max_logits("max_logits", DType::f32, {s_q, h_q});
  const Tensor lse("lse", DType::f32, {s_q, h_q});
  args.out = out.view();
  args.max_logits = max_logits.view();
  args.lse = lse.view();

  const Device device = cli.device;
  double seconds = 0;
  std::string where;
  if (device.type == DeviceType::cuda) {
    seconds = attend_on(device, args);
    where = gpu::survey().devices[static_cast<std::size_t>(device.index)].name;
  } else {
    const auto begin = std::chrono::steady_clock::now();
    sparse_mla_prefill(args, {}, cli.threads);
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    where = fmt::format("CPU ({}), {} threads", sparse_mla::cpu_paths().front()->name,
                        resolve_threads(cli.threads));
  }

  const auto topk = static_cast<double>(args.indices.shape[2]);
  const double flop = 2.0 * static_cast<double>(s_q * h_q) * topk * static_cast<double>(d_qk + 512);
  fmt::print("q {}, kv {}, topk {}, sm_scale {:.6g}\n", shape_string(args.q), shape_string(args.kv),
             args.indices.shape[2], args.sm_scale);
  fmt::print("{}: {:.3f} ms, {:.4f} TFLOPS\n", where, seconds * 1e3, flop / seconds * 1e-12);
  const bool within =
      !cli.check || check_outputs(args, budget_of(args, device), out, max_logits, lse);
  if (!cli.out.empty()) {
    const Tensor* const outputs[] = {&out, &max_logits, &lse};
    write_outputs(cli.out, outputs);
  }
  return within ? kFine : kViolation;
}

// A small problem that anybody can look into: unit-normal q and kv, and rows as an indexer might
// choose them, with some invalid ones at the end of the first tokens.
void write_example(const std::string& dir) {
  constexpr std::int64_t kTokens = 8, kHeads = 16, kRows = 512, kDQk = 576, kTopk = 64;
  std::mt19937 random(20);
  const auto normal = [&random] {  // the same on every standard library
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += static_cast<double>(random()) * 0x1p-32;
    return static_cast<float>(sum);
  };
  const Tensor q("q", DType::e4m3, {kTokens, kHeads, kDQk});
  const Tensor kv("kv", DType::e4m3, {kRows, 1, kDQk});
  const Tensor indices("indices", DType::i32, {kTokens, 1, kTopk});
  const Tensor q_scale("q_scale", DType::f32, {1});
  const Tensor kv_scale("kv_scale", DType::f32, {1});
  const Tensor sink("attn_sink", DType::f32, {kHeads});
  for (const Tensor* t : {&q, &kv}) {
    for (std::int64_t i = 0; i < t->view().numel(); ++i) {
      t->as<std::uint8_t>()[i] = e4m3_from_float(normal());
    }
  }
  for (std::int64_t t = 0; t < kTokens; ++t) {
    for (std::int64_t i = 0; i < kTopk; ++i) {
      const bool valid = i < (t + 1) * 16;
      indices.as<std::int32_t>()[t * kTopk + i] =
          valid ? static_cast<std::int32_t>(random() % kRows) : -1;
    }
  }
  *q_scale.as<float>() = 1;
  *kv_scale.as<float>() = 0.5f;
  for (std::int64_t h = 0; h < kHeads; ++h) sink.as<float>()[h] = normal();
  std::error_code failed;
  std::filesystem::create_directories(dir, failed);
  if (failed) {
    raise(errors::Page::tensor_file_not_written, {{"got", dir}, {"why", failed.message()}});
  }
  const std::string path = (std::filesystem::path(dir) / "example.safetensors").string();
  const Tensor* const all[] = {&q, &kv, &indices, &q_scale, &kv_scale, &sink};
  write_safetensors(path, all);
  fmt::print(
      "{} holds q, kv, indices, q_scale, kv_scale and attn_sink. Try:\n"
      "  serinus attend {} --check --out {}\n",
      path, path, (std::filesystem::path(dir) / "result.safetensors").string());
}

}  // namespace

void add_attend(CLI::App& app, int& exit_code) {
  auto args = std::make_shared<Arguments>();
  CLI::App* cmd = app.add_subcommand("attend", "FP8 sparse MLA prefill on tensors from files");
  cmd->add_option("FILE", args->file,
                  "A .safetensors file whose tensors are named as the options below");
  for (std::size_t i = 0; i < std::size(kInputs); ++i) {
    std::string option = std::string("--") + kInputs[i];
    std::replace(option.begin(), option.end(), '_', '-');
    cmd->add_option(option, args->npy[i], fmt::format("{} from a .npy file", kInputs[i]))
        ->type_name("FILE.npy");
  }
  cmd->add_option("--sm-scale", args->sm_scale, "Default: 1 / sqrt(d_qk)");
  add_choice(
      *cmd, "--p-dtype", args->p_dtype, {{"f32", DType::f32}, {"bf16", DType::bf16}},
      "What P, the softmax weights, may be rounded to: bf16 is faster where the CPU has bf16 "
      "dot products");
  cmd->add_option("--out", args->out,
                  "Where out, max_logits and lse go: FILE.safetensors, or a folder for .npy files");
  cmd->add_flag("--check", args->check, "Compare with float64; exit code 1 when out of budget");
  add_device(*cmd, args->device, "Where it runs");
  cmd->add_option("--threads", args->threads, "0 = all that the machine has")
      ->check(CLI::Range(0, 4096));
  cmd->add_option("--example", args->example, "Write a small example into this folder, and stop")
      ->type_name("DIR");
  cmd->footer(
      "FP8 (e4m3) is uint8 in .npy and F8_E4M3 or U8 in .safetensors, bfloat16 is uint16 or\n"
      "BF16. Scales default to 1. The one KV head may be left out of a shape.\n\n" +
      app.get_footer());
  cmd->callback([args, &exit_code] {
    if (!args->example.empty()) {
      write_example(args->example);
      exit_code = kFine;
      return;
    }
    exit_code = attend(*args);
  });
}

}  // namespace serinus::cli
