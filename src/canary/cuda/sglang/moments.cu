// A Monitor's moment around the format's kernels: its inputs made safe, trees of drafts, and what
// was found on its way to the Monitor's ring.
#include <cstdint>

#include "canary/cuda/grid.h"
#include "canary/cuda/serinus/ring.cuh"
#include "canary/cuda/sglang/device.cuh"
#include "canary/cuda/sglang/moments.h"
#include "canary/sglang/monitored.h"
#include "gpu/launch.h"

namespace serinus::canary::sglang::cuda {

namespace {

using canary::cuda::grid_for;

constexpr int kThreads = 128;

__global__ void prepare_kernel(const __grid_constant__ PrepareParams p) {
  if (thread_index() == 0) *p.words = MomentWords{};
  for (std::int64_t r = thread_index(); r < p.num_requests; r += thread_count()) {
    const std::int64_t prefix = p.prefix_lens[r];
    p.prefixes[r] = prefix < 0 ? 0 : prefix < p.longest_prefix ? prefix : p.longest_prefix;
    p.valid[r] = p.valid_lens != nullptr ? p.valid_lens[r] : p.all_valid;
  }
  for (std::int64_t i = thread_index(); i < p.num_tokens; i += thread_count()) {
    const std::int64_t slot = p.locations[i];
    p.slots[i] =
        p.full_to_swa == nullptr ? slot : translate(p.full_to_swa, p.full_to_swa_size, slot);
  }
}

/// A request a thread: a tree has few tokens, and each waits for the one before it.
__global__ void tree_kernel(const __grid_constant__ TreeParams p) {
  const WriteParams& w = p.write;
  const ContextParams& c = w.context;
  const int alignment = record_alignment(c);
  const std::int64_t rows = count_of(*w.num_valid_reqs, w.req_capacity);
  for (std::int64_t i = thread_index(); i < w.num_tokens; i += thread_count()) p.slots[i] = -1;
  for (std::int64_t r = thread_index(); r < w.req_capacity; r += thread_count()) {
    p.no_seeds[r] = kChainHead;
  }
  __syncthreads();  // one CTA
  for (std::int64_t r = thread_index(); r < rows; r += thread_count()) {
    const WriteRow row = write_row(w, r);
    std::int64_t lost = 0;
    for (std::int64_t i = row.begin; i < row.end; ++i) {
      const std::int64_t parent = p.parents[i];
      const bool inner = parent >= row.begin && parent < i;
      const std::int64_t seed = inner ? w.slots[parent] : row.seed;
      const std::int64_t slot = w.slots[i];
      const bool seed_exists = seed < c.num_slots;
      if (!seed_exists && slot >= 0) ++lost;
      p.slots[i] = seed_exists ? slot : -1;
      p.seeds[i] = seed;
      p.chains[i] = i64(hash::kAnchorHash);
      if (seed < 0 || !seed_exists) continue;
      // What the pool will hold there once all of this is written.
      const bool is_new = inner && exists(c, p.slots[parent]);
      const Record before = is_new
                                ? Record{w.tokens[parent], w.positions[parent], p.chains[parent], 0}
                                : load(c, seed, alignment);
      p.chains[i] = i64(hash_of(before));
      const std::int64_t next = i64(u64(before.position) + 1);
      if (exists(c, slot) && w.positions[i] != next) {
        append(c,
               write_violation(w, i, u64(p.chains[i]), w.tokens[i], next,
                               static_cast<std::int64_t>(FailReason::write_position)),
               i);
      }
    }
    add(&p.words->written, lost);
    add(&p.words->out_of_range, lost);
  }
}

/// What the format leaves out of a row of verify().
__device__ void complete_entry(const ReportParams& p, std::int64_t entry,
                               canary::cuda::RingRow& to) {
  to.expected_position = p.plan.positions[entry];
  to.prev_slot = p.plan.prev_slots[entry];
  std::int64_t end = 0;
  for (std::int64_t r = 0; r < p.plan.num_requests; ++r) {
    end = add_lengths(end, plan_row(p.plan, r).entries());
    if (entry >= end) continue;
    to.request = p.owners[r];
    to.row = p.plan.rows[r];
    return;
  }
}

/// The same of a row of write().
__device__ void complete_token(const ReportParams& p, std::int64_t token,
                               canary::cuda::RingRow& to) {
  for (std::int64_t r = 0; r < p.plan.num_requests; ++r) {
    if (token >= p.plan.write_offsets[r + 1]) continue;
    to.request = p.owners[r];
    to.row = p.plan.rows[r];
    to.prev_slot = p.tree != nullptr                  ? p.tree[token]
                   : token == p.plan.write_offsets[r] ? p.plan.write_seeds[r]
                                                      : p.slots[token - 1];
    return;
  }
}

__device__ void report_row(const ReportParams& p, const ViolationRow& row, std::int64_t entry) {
  const std::uint32_t life = within(row.slot, p.num_slots) ? p.lives[row.slot] : 0;
  const auto [at, number] = canary::cuda::find_row(p.ring, p.pool, row.slot, life,
                                                   reasons_of(row.fail_reason_bits), p.moment, 0);
  const canary::cuda::Sighting to(at, number);
  if (!to) return;
  to->stored_position = row.position;
  to->stored_token = row.stored_token;
  to->expected_token = row.expected_token;
  to->stored_chain = u64(row.stored_chain_hash);
  to->expected_generation = life;
  if (is_of_a_write(row.fail_reason_bits)) {
    to->expected_position = row.expected_aux;
    complete_token(p, entry, *to);
  } else {
    to->expected_chain = u64(row.expected_aux);
    complete_entry(p, entry, *to);
  }
}

/// One CTA: as a rule there is nothing.
__global__ void report_kernel(const __grid_constant__ ReportParams p) {
  const std::int64_t found = p.words->found;
  const std::int64_t stored = found < p.capacity ? found : p.capacity;
  for (int pass = 0; pass < 2; ++pass) {  // of one slot, the record comes first
    const bool of_writes = pass == 1;
    for (std::int64_t i = thread_index(); i < stored; i += thread_count()) {
      if (is_of_a_write(p.rows[i].fail_reason_bits) == of_writes) {
        report_row(p, p.rows[i], p.entries[i]);
      }
    }
    __syncthreads();
  }
  if (thread_index() != 0) return;
  using canary::cuda::add;
  canary::cuda::RingCounts& counts = p.ring.header->counts;
  const std::int64_t verified = p.words->verified, written = p.words->written;
  add(counts.records_verified, u64(verified));
  if (p.moment == Moment::tail) add(counts.records_written, u64(written));
  add(counts.bytes_digested, u64((verified + written) * p.slot_bytes));
  add(counts.out_of_range, u64(p.words->out_of_range));
  add(counts.dropped, u64(found - stored));
}

__global__ void lives_kernel(std::uint32_t* lives, std::int64_t num_slots,
                             const std::int64_t* slots, const std::uint32_t* begun,
                             std::int64_t count) {
  for (std::int64_t i = thread_index(); i < count; i += thread_count()) {
    if (within(slots[i], num_slots)) atomicMax(lives + slots[i], begun[i]);
  }
}

__global__ void carry_kernel(const __grid_constant__ CarryParams p) {
  for (std::int64_t i = thread_index(); i < p.count; i += thread_count()) {
    const std::int64_t slot = p.slots[i];
    const bool exists = within(slot, p.num_slots);
    if (p.to_list) {
      p.list[i] = exists ? p.records[slot] : Record{};
    } else if (exists && (p.from == nullptr || within(p.from[i], p.num_slots))) {
      Record r = p.list[i];
      if (p.without_bytes) r.real_kv_hash = 0;
      p.records[slot] = r;
    }
  }
}

}  // namespace

void prepare(const PrepareParams& p, Device device, Stream stream) {
  const gpu::OnDevice current(device);
  const std::int64_t items = p.num_requests > p.num_tokens ? p.num_requests : p.num_tokens;
  gpu::launch("canary moment", prepare_kernel, {grid_for(device, items, kThreads, 8), kThreads},
              stream, p);
}

void compose_tree(const TreeParams& p, Device device, Stream stream) {
  const gpu::OnDevice current(device);
  gpu::launch("canary tree", tree_kernel, {1, kThreads}, stream, p);
}

void report(const ReportParams& p, Device device, Stream stream) {
  const gpu::OnDevice current(device);
  gpu::launch("canary report", report_kernel, {1, kThreads}, stream, p);
}

void begin_lives(std::uint32_t* lives, std::int64_t num_slots, const std::int64_t* slots,
                 const std::uint32_t* begun, std::int64_t count, Device device, Stream stream) {
  const gpu::OnDevice current(device);
  gpu::launch("canary lives", lives_kernel, {grid_for(device, count, kThreads, 8), kThreads},
              stream, lives, num_slots, slots, begun, count);
}

void carry(const CarryParams& p, Device device, Stream stream) {
  const gpu::OnDevice current(device);
  gpu::launch("canary records", carry_kernel, {grid_for(device, p.count, kThreads, 8), kThreads},
              stream, p);
}

}  // namespace serinus::canary::sglang::cuda
