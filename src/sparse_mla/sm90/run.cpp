// The Hopper backend's host side: what it needs, how a call is cut, which kernel runs.
#include <algorithm>
#include <exception>

#include <serinus/error.h>

#include "base/checks.h"
#include "gpu/device.h"
#include "gpu/launch.h"
#include "sparse_mla/sm90/launch.h"

namespace serinus::sparse_mla {

namespace {

using sm90::KernelParams;
using sm90::PartialStats;
using sm90::Plan;

/// The kernel counts its items in 32 bits.
constexpr std::int64_t kMostItems = std::int64_t{1} << 30;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

/// Few items leave SMs idle, so that their indices are worth splitting. Costs in units of a
/// block's time; measured: docs/design/sparse_mla_sm90.md.
int choose_splits(std::int64_t items, std::int64_t blocks, std::int64_t slots) {
  if (items == 0) return 1;
  constexpr double kStart = 5;  // of an item: its first rows and its epilogue
  constexpr double kMerge = 5;
  int best = 1;
  double best_cost = 0;
  for (int s = 1; s <= std::min<std::int64_t>(16, blocks); ++s) {
    const auto waves = static_cast<double>(ceil_div(items * s, slots));
    const double cost =
        waves * (static_cast<double>(ceil_div(blocks, s)) + kStart) + (s > 1 ? kMerge : 0);
    if (s == 1 || cost < best_cost) {
      best = s;
      best_cost = cost;
    }
  }
  return best;
}

Plan make_plan(const Params& p, int multiprocessors) {
  Plan plan;
  plan.heads = p.h_q <= 8 ? 8 : p.h_q <= 16 ? 16 : p.h_q <= 32 ? 32 : 64;
  plan.head_groups = static_cast<int>(ceil_div(p.h_q, plan.heads));
  plan.slots = std::max(multiprocessors, 1);
  const std::int64_t items = p.s_q * plan.head_groups, blocks = ceil_div(p.topk, sm90::kBlock);
  std::int64_t last = items;  // those that are worth splitting, as whole tokens
  plan.splits = choose_splits(last, blocks, plan.slots);
  if (plan.splits == 1 && items > plan.slots && items < kMostItems / 2) {
    last = ceil_div(items % plan.slots, plan.head_groups) * plan.head_groups;
    plan.splits = choose_splits(last, blocks, plan.slots);
  }
  if (plan.splits == 1) last = 0;
  plan.whole = items - last;
  plan.items = plan.whole + last * plan.splits;
  return plan;
}

std::size_t partial_out_bytes(const Plan& plan) {
  return static_cast<std::size_t>(plan.split_items()) * static_cast<std::size_t>(plan.heads) * kDV *
         sizeof(std::uint16_t);
}

/// What the kernel's wide accesses need beyond the contract that the door has checked.
void check_outputs(const Params& p) {
  check_aligned("out", TensorView(p.out, DType::bf16, {kDV}), 16);
  check_aligned("indices", TensorView(const_cast<std::int32_t*>(p.indices), DType::i32, {1}), 4);
  check_aligned("max_logits", TensorView(p.max_logits, DType::f32, {1}), 4);
  check_aligned("lse", TensorView(p.lse, DType::f32, {1}), 4);
}

void require(const Params& p, Device device) {
  gpu::require_hopper("sparse_mla_prefill", device);
  check_outputs(p);
}

bool is_aligned(const Params& p) {
  return (reinterpret_cast<std::uintptr_t>(p.q) | static_cast<std::uintptr_t>(p.stride_q_s_q) |
          static_cast<std::uintptr_t>(p.stride_q_h_q)) %
             16 ==
         0;
}

template <int kDQK>
void launch(const KernelParams& k, const Plan& plan, Stream stream) {
  switch (plan.heads) {
    case 8:
      return sm90::launch<kDQK, 8>(k, plan, stream);
    case 16:
      return sm90::launch<kDQK, 16>(k, plan, stream);
    case 32:
      return sm90::launch<kDQK, 32>(k, plan, stream);
    default:
      return sm90::launch<kDQK, 64>(k, plan, stream);
  }
}

/// `tokens` of the call from `first` on.
Params part(const Params& p, std::int64_t first, std::int64_t tokens) {
  Params r = p;
  r.s_q = tokens;
  r.q += first * p.stride_q_s_q;
  r.indices += first * p.stride_indices_s_q;
  if (r.topk_length != nullptr) r.topk_length += first;
  r.out += first * p.h_q * kDV;
  r.max_logits += first * p.h_q;
  r.lse += first * p.h_q;
  return r;
}

}  // namespace

void run_sm90(const Params& p, Device device, Stream stream) {
  require(p, device);
  if (p.s_q == 0) return;
  const gpu::OnDevice on(device);
  const Plan plan = make_plan(p, gpu::multiprocessors(device));
  KernelParams k;
  k.rows = static_cast<std::uint32_t>(std::min<std::int64_t>(p.s_kv, std::int64_t{1} << 31));
  k.head_groups = static_cast<std::uint32_t>(plan.head_groups);
  k.splits = static_cast<std::uint32_t>(plan.splits);
  k.q_aligned = is_aligned(p);
  if (plan.splits > 1) {
    k.partial_out = static_cast<std::uint16_t*>(p.workspace);
    k.partial_stats = reinterpret_cast<PartialStats*>(static_cast<std::byte*>(p.workspace) +
                                                      partial_out_bytes(plan));
  }
  // A call that is split is below.
  const std::int64_t most = kMostItems / plan.head_groups;
  for (std::int64_t first = 0; first < p.s_q; first += most) {
    k.p = part(p, first, std::min(most, p.s_q - first));
    k.items = static_cast<std::uint32_t>(plan.splits > 1 ? plan.items : k.p.s_q * plan.head_groups);
    k.whole = plan.splits > 1 ? static_cast<std::uint32_t>(plan.whole) : k.items;
    k.p.d_qk == 576 ? launch<576>(k, plan, stream) : launch<512>(k, plan, stream);
  }
  if (plan.splits > 1) sm90::launch_merge(k, plan, stream);
}

std::size_t workspace_sm90(const Params& p, Device device) noexcept {
  if (p.s_q <= 0 || p.h_q <= 0 || p.topk <= 0) return 0;
  const Plan plan = make_plan(p, gpu::multiprocessors(device));
  if (plan.splits == 1) return 0;
  return partial_out_bytes(plan) + static_cast<std::size_t>(plan.split_items()) *
                                       static_cast<std::size_t>(plan.heads) * sizeof(PartialStats);
}

CanRun can_run_sm90(const Params& p, Device device) noexcept {
  try {
    require(p, device);
    return {};
  } catch (const Error& e) {
    return {false, e.id(), e.what()};
  } catch (const std::exception& e) {
    return {false, "", e.what()};
  }
}

}  // namespace serinus::sparse_mla
