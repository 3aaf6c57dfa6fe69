// The sglang format under the Monitor: two record buffers a pool (head and tail), and at every
// moment the plan, verify and write of canary_sglang.h. The format has no ledger: what the
// allocator announces serves only to tell one life of a slot from the next, so that a fault is
// reported once.
#include <algorithm>
#include <bit>
#include <deque>
#include <utility>

#include <serinus/canary_sglang.h>

#include "canary/backend.h"
#include "canary/serinus/pool.h"
#include "canary/sglang/hash.h"
#include "canary/sglang/monitored.h"

namespace serinus::canary {

namespace {

namespace sg = sglang;

TensorView vector_view(std::span<const std::int64_t> s) {
  return {const_cast<std::int64_t*>(s.data()), DType::i64, {static_cast<std::int64_t>(s.size())}};
}

/// Whose entries a plan lists: one request's end before `end_entry`.
struct Reader {
  std::int64_t end_entry = 0;
  Owner owner = 0;
  std::int64_t row = -1;
};

struct SglangPool {
  SglangPool(PoolSpec s, Depth depth)
      : spec(std::move(s)), head(spec.num_slots), tail(spec.num_slots), lives(spec.num_slots) {
    if (depth != Depth::none) sources = sg::real_kv_sources(spec);
    slot_bytes = sg::bytes_of(sources, depth);
  }
  bool has(std::int64_t slot) const noexcept { return slot >= 0 && slot < spec.num_slots; }
  std::int64_t translate(std::int64_t slot) const noexcept {
    if (spec.full_to_swa.empty() || slot < 0) return slot;
    return spec.full_to_swa[std::min(static_cast<std::size_t>(slot), spec.full_to_swa.size() - 1)];
  }
  /// The tail checks what the head planned, unless another forward began in between.
  bool is_planned_for(const Batch& b) const {
    return verify_plan && std::ranges::equal(planned_rows, b.rows) &&
           std::ranges::equal(planned_prefixes, b.prefix_lens) &&
           std::ranges::equal(planned_extends, b.extend_lens);
  }

  PoolSpec spec;
  ZeroArray<Record> head, tail;  // 32 bytes a slot; the fields are those of sglang::Record
  ZeroArray<std::uint32_t> lives;
  std::vector<sg::RealKvSource> sources;
  std::int64_t slot_bytes = 0;
  std::function<void(std::vector<SweepEntry>&)> sweep_source;
  std::optional<sg::HostVerifyPlan> verify_plan;  // of the step in progress
  std::optional<sg::HostWritePlan> write_plan;
  std::vector<Reader> readers;  // of verify_plan
  std::vector<std::int64_t> planned_rows, planned_prefixes, planned_extends;
};

class SglangBackend final : public Backend {
 public:
  SglangBackend(const Options& options, Reporter& reporter)
      : Backend(options, reporter),
        ring_(static_cast<std::size_t>(options.ring_capacity)),
        ring_entries_(ring_.size()) {}

  void add_pool(const PoolSpec& spec) override { pools_.emplace_back(spec, options_.depth); }

  void detach_pool(int pool) override {
    detached_.push_back(pool);
    SglangPool& p = at(pool);
    p.sources.clear();
    p.sweep_source = nullptr;
    p.verify_plan.reset();
  }

  void on_alloc(int pool, std::span<const std::int64_t> slots, Owner) override {
    SglangPool& p = at(pool);
    ++life_;
    for (const std::int64_t slot : slots) {
      if (!p.has(slot)) continue;
      if (!reporter_.empty()) reporter_.forget(pool, slot, p.lives[slot]);
      p.lives[slot] = life_;
    }
  }
  void on_free(int, std::span<const std::int64_t>, Owner) override {}
  void on_transfer(int, std::span<const std::int64_t>, Owner, Owner) override {}
  void on_attach(Owner, std::int64_t, std::int64_t, std::int64_t) override {}
  void on_release(Owner) override {}

  void on_move(int pool, std::span<const std::int64_t> from,
               std::span<const std::int64_t> to) override {
    SglangPool& p = at(pool);
    std::vector<Record> heads(from.size()), tails(from.size());
    for (std::size_t i = 0; i < from.size(); ++i) {
      if (!p.has(from[i])) continue;
      heads[i] = p.head[from[i]];
      tails[i] = p.tail[from[i]];
    }
    for (std::size_t i = 0; i < to.size(); ++i) {
      if (!p.has(from[i]) || !p.has(to[i])) continue;
      p.head[to[i]] = heads[i];
      p.tail[to[i]] = tails[i];
    }
  }
  void on_store(int pool, std::span<const std::int64_t> slots, std::span<Record> records,
                std::span<std::uint32_t>) override {
    SglangPool& p = at(pool);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      records[i] = p.has(slots[i]) ? p.tail[slots[i]] : Record{};
    }
  }
  void on_load(int pool, std::span<const Record> records, std::span<const std::int64_t> slots,
               Owner, std::span<const std::uint32_t>) override {
    SglangPool& p = at(pool);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (!p.has(slots[i])) continue;
      p.tail[slots[i]] = records[i];
      Record head = records[i];
      head.kv_digest = 0;  // the head pass runs before the bytes are written
      p.head[slots[i]] = head;
    }
  }

  void head(const Batch& batch, Stream) override {
    each_pool(batch, [&](int pool) {
      plan(pool, batch);
      verify(pool, Moment::head, *at(pool).verify_plan, at(pool).readers, checks_tokens(batch));
      write(pool, Moment::head, batch);
    });
  }
  void tail(const Batch& batch, Stream) override {
    each_pool(batch, [&](int pool) {
      if (!at(pool).is_planned_for(batch)) plan(pool, batch);
      verify(pool, Moment::tail, *at(pool).verify_plan, at(pool).readers, checks_tokens(batch));
      write(pool, Moment::tail, batch);
      at(pool).verify_plan.reset();
    });
  }
  void stamp(const Batch& batch, Stream) override {
    each_pool(batch, [&](int pool) {
      plan(pool, batch);
      write(pool, Moment::head, batch);
      write(pool, Moment::tail, batch);
      at(pool).verify_plan.reset();
    });
  }

  void sweep(Stream) override {
    if (options_.sweep_interval > 0 &&
        step % static_cast<std::uint64_t>(options_.sweep_interval) == 0) {
      sweep_now();
    }
  }
  void flush() override { sweep_now(); }

  void verify_now(Moment moment, Owner owner, std::int64_t row, std::int64_t begin,
                  std::int64_t end, const Batch& tables, Stream) override {
    const std::int64_t extend = 0;
    Batch one = tables;
    one.rows = {&row, 1};
    one.prefix_lens = {&end, 1};
    one.extend_lens = {&extend, 1};
    one.owners = {&owner, 1};
    std::int64_t valid = table_of(tables.expected_tokens, "expected_tokens").columns;
    for (std::size_t i = 0; i < tables.valid_lens.size(); ++i) {
      if (tables.owners[i] == owner) valid = tables.valid_lens[i];
    }
    one.valid_lens = {&valid, 1};
    one.input_ids = one.positions = one.out_cache_loc = {};
    each_pool(one, [&](int pool) {
      plan(pool, one, false);
      sg::HostVerifyPlan& p = *at(pool).verify_plan;
      sg::HostVerifyPlan part(std::max<std::int64_t>(1, p.num_valid));
      std::size_t n = 0;
      for (std::size_t i = 0; i < static_cast<std::size_t>(p.num_valid); ++i) {
        if (p.positions[i] < begin) continue;
        part.slots[n] = p.slots[i];
        part.tokens[n] = p.tokens[i];
        part.positions[n] = p.positions[i];
        part.prev_slots[n++] = p.prev_slots[i];
      }
      part.num_valid = static_cast<std::int32_t>(n);
      verify(pool, moment, part, {{part.num_valid, owner, row}}, checks_tokens(one));
      at(pool).verify_plan.reset();
    });
  }

  std::uint64_t request_digest(std::int64_t row, std::int64_t length,
                               const Batch& tables) const override {
    const Table table = table_of(tables.req_to_token, "req_to_token");
    std::uint64_t h = sg::splitmix64(static_cast<std::uint64_t>(length) + 1);
    if (!table.has_row(row)) return h;
    for (int pool = 0; pool < static_cast<int>(pools_.size()); ++pool) {
      const SglangPool& p = pools_[static_cast<std::size_t>(pool)];
      const bool named = std::ranges::find(tables.pools, pool) != tables.pools.end();
      if (tables.pools.empty() ? !is_attached(pool) : !named) continue;
      for (std::int64_t c = 0; c < std::min(length, table.columns); ++c) {
        const std::int64_t slot = p.translate(table.at(row, c));
        const std::uint64_t chain =
            p.has(slot) ? sg::chain_hash(std::bit_cast<sg::Record>(p.tail[slot])) : 0;
        h = sg::splitmix64(h ^ chain);
      }
    }
    return h;
  }

  std::span<Record> records(int pool) override { return at(pool).tail.span(); }
  std::span<LedgerEntry> ledger(int) override { return {}; }
  SlotState state(int pool, std::int64_t slot) const override {
    const SglangPool& p = pools_[static_cast<std::size_t>(pool)];
    if (!p.has(slot) || p.lives[slot] == 0) return SlotState::free;
    return p.tail[slot] == Record{} ? SlotState::empty : SlotState::written;
  }
  std::optional<std::uint64_t> digest_of(int pool, std::int64_t slot) const override {
    return sg::real_kv_hash(pools_[static_cast<std::size_t>(pool)].sources,
                            sg::mode_of(options_.depth), slot);
  }
  std::int64_t num_sources(int pool) const override {
    return static_cast<std::int64_t>(pools_[static_cast<std::size_t>(pool)].sources.size());
  }
  void set_sweep_source(int pool, std::function<void(std::vector<SweepEntry>&)> source) override {
    at(pool).sweep_source = std::move(source);
  }

 private:
  SglangPool& at(int pool) { return pools_[static_cast<std::size_t>(pool)]; }

  template <class F>
  void each_pool(const Batch& batch, F&& f) {
    if (batch.rows.empty()) return;
    if (!batch.pools.empty()) {
      for (const int pool : batch.pools) f(pool);
    } else {
      for (int pool = 0; pool < static_cast<int>(pools_.size()); ++pool) {
        if (is_attached(pool)) f(pool);
      }
    }
  }

  static bool checks_tokens(const Batch& batch) { return batch.expected_tokens.data != nullptr; }

  void plan(int pool, const Batch& batch, bool windowed = true) {
    SglangPool& p = at(pool);
    const Table table = table_of(batch.req_to_token, "req_to_token");
    // Beyond the table there are no cells to list: one entry shows that they were asked for.
    std::vector<std::int64_t> prefixes(batch.prefix_lens.begin(), batch.prefix_lens.end());
    std::int64_t capacity = 0;
    for (std::int64_t& n : prefixes) {
      n = std::clamp<std::int64_t>(n, 0, table.columns + 1);
      capacity += n;
    }
    const bool has_window = windowed && p.spec.kind == PoolKind::swa &&
                            !p.spec.full_to_swa.empty() && p.spec.window > 0;
    p.planned_rows.assign(batch.rows.begin(), batch.rows.end());
    p.planned_prefixes.assign(batch.prefix_lens.begin(), batch.prefix_lens.end());
    p.planned_extends.assign(batch.extend_lens.begin(), batch.extend_lens.end());
    p.readers.clear();
    for (std::size_t r = 0; r < prefixes.size(); ++r) {
      const bool active = batch.rows[r] != sg::kPaddingRow;
      const std::int64_t listed = !active      ? 0
                                  : has_window ? std::min(prefixes[r], p.spec.window)
                                               : prefixes[r];
      const std::int64_t before = p.readers.empty() ? 0 : p.readers.back().end_entry;
      p.readers.push_back({before + listed, batch.owners[r], batch.rows[r]});
    }
    p.verify_plan.emplace(std::max<std::int64_t>(1, capacity));
    p.write_plan.emplace(static_cast<std::int64_t>(batch.rows.size()));
    sg::PlanInput in;
    in.req_pool_indices = vector_view(batch.rows);
    in.prefix_lens = vector_view(prefixes);
    in.extend_seq_lens = vector_view(batch.extend_lens);
    in.req_to_token = batch.req_to_token;
    in.verify_capacity = std::max<std::int64_t>(1, capacity);
    if (sg::translates(p.spec)) {
      in.swa_window_size = windowed ? p.spec.window : 0;
      in.full_to_swa_index_mapping = vector_view(p.spec.full_to_swa);
    }
    std::vector<std::int64_t> valid(batch.valid_lens.begin(), batch.valid_lens.end());
    if (checks_tokens(batch)) {
      if (valid.empty()) valid.assign(batch.rows.size(), batch.expected_tokens.shape[1]);
      in.req_to_verify_expected_tokens = batch.expected_tokens;
      in.req_to_verify_expected_tokens_valid_lens = vector_view(valid);
      in.kv_token_id_vs_position_offset = p.spec.token_offset;
    }
    sg::plan(p.verify_plan->view(), p.write_plan->view(), in, {}, options_.threads);
  }

  sg::VerifyOrWriteContext context(int pool, Moment moment) {
    SglangPool& p = at(pool);
    sg::VerifyOrWriteContext c;
    ZeroArray<Record>& buffer = moment == Moment::head ? p.head : p.tail;
    c.canary_buf = TensorView(buffer.data(), DType::u8, {p.spec.num_slots, sg::kSlotBytes});
    c.kernel_kind = sg::tag_of(p.spec.kind, moment);
    c.violation_ring =
        TensorView(ring_.data(), DType::i64, {options_.ring_capacity, sg::kViolationFields});
    c.violation_write_index = TensorView(&ring_index_, DType::i32, {1});
    c.slot_run_counter = TensorView(&slot_runs_, DType::i64, {1});
    c.kernel_run_counter = TensorView(&kernel_runs_, DType::i64, {1});
    c.enable_chain_position_assert = TensorView(&position_assert_, DType::i32, {1});
    c.out_of_range_counter = TensorView(&out_of_range_, DType::i64, {1});
    c.violation_entries = vector_view(ring_entries_);
    if (moment != Moment::head && !p.sources.empty()) {
      c.real_kv_sources = p.sources;
      c.real_kv_hash_mode = sg::mode_of(options_.depth);
    }
    return c;
  }

  void verify(int pool, Moment moment, sg::HostVerifyPlan& plan, const std::vector<Reader>& readers,
              bool check_tokens) {
    const std::int64_t before = slot_runs_;
    sg::verify(context(pool, moment), plan.view(), check_tokens, {}, options_.threads);
    count(stats.records_verified, pool, moment, before);
    drain(pool, moment, [&](Violation& v, std::int64_t entry) {
      const auto i = static_cast<std::size_t>(entry);
      v.expected_position = plan.positions[i];
      v.prev_slot = plan.prev_slots[i];
      const auto reader =
          std::upper_bound(readers.begin(), readers.end(), entry,
                           [](std::int64_t e, const Reader& r) { return e < r.end_entry; });
      if (reader == readers.end()) return;
      v.request = reader->owner;
      v.row = reader->row;
    });
  }

  void write(int pool, Moment moment, const Batch& batch) {
    if (batch.out_cache_loc.empty()) return;
    SglangPool& p = at(pool);
    std::vector<std::int64_t> slots(batch.out_cache_loc.begin(), batch.out_cache_loc.end());
    if (sg::translates(p.spec)) {
      sg::translate_slots(vector_view(slots), vector_view(p.spec.full_to_swa), vector_view(slots));
    }
    if (!batch.parents.empty()) {
      write_tree(pool, moment, batch, slots);
      return;
    }
    write_rows(pool, moment, batch, *p.write_plan, batch.input_ids, batch.positions, slots,
               [](std::size_t row) { return row; });
  }

  /// The format's rows are linear chains, and a row's seed is read before anything is written. So a
  /// tree is written level by level, each token a row of its own, seeded by its parent's slot.
  void write_tree(int pool, Moment moment, const Batch& batch,
                  const std::vector<std::int64_t>& slots) {
    const sg::HostWritePlan& rows = *at(pool).write_plan;
    std::vector<std::size_t> request(slots.size()), depth(slots.size());
    std::vector<std::int64_t> seeds(slots.size(), sg::kChainHead);
    std::vector<bool> listed(slots.size());
    std::size_t levels = 0;
    for (std::size_t r = 0; r < static_cast<std::size_t>(rows.num_valid_reqs); ++r) {
      const auto n = std::ssize(slots);
      const std::int64_t begin = std::clamp<std::int64_t>(rows.offsets[r], 0, n);
      const std::int64_t end = std::clamp<std::int64_t>(rows.offsets[r + 1], begin, n);
      const bool was_cut = rows.offsets[r + 1] > std::max(rows.offsets[r], n);
      if (was_cut) ++out_of_range_;  // as write() counts it
      for (std::int64_t j = begin; j < end; ++j) {
        const auto i = static_cast<std::size_t>(j);
        const std::int64_t parent = batch.parents[i];
        const bool inner = parent >= begin && parent < j;
        request[i] = r;
        depth[i] = inner ? depth[static_cast<std::size_t>(parent)] + 1 : 0;
        seeds[i] = inner ? slots[static_cast<std::size_t>(parent)] : rows.seeds[r];
        listed[i] = true;
        levels = std::max(levels, depth[i] + 1);
      }
    }
    for (std::size_t level = 0; level < levels; ++level) {
      std::vector<std::int64_t> ids, positions, where;
      std::vector<std::size_t> from;
      for (std::size_t i = 0; i < slots.size(); ++i) {
        if (!listed[i] || depth[i] != level) continue;
        ids.push_back(batch.input_ids[i]);
        positions.push_back(batch.positions[i]);
        where.push_back(slots[i]);
        from.push_back(i);
      }
      sg::HostWritePlan plan(std::ssize(where));
      for (std::size_t k = 0; k < from.size(); ++k) {
        plan.offsets[k + 1] = static_cast<std::int64_t>(k) + 1;
        plan.seeds[k] = seeds[from[k]];
      }
      plan.num_valid_reqs = static_cast<std::int32_t>(from.size());
      write_rows(pool, moment, batch, plan, ids, positions, where,
                 [&](std::size_t row) { return request[from[row]]; });
    }
    stats.out_of_range = static_cast<std::uint64_t>(out_of_range_);
  }

  /// `request_of` gives the batch's request of a row of the plan.
  template <class RequestOf>
  void write_rows(int pool, Moment moment, const Batch& batch, sg::HostWritePlan& plan,
                  std::span<const std::int64_t> ids, std::span<const std::int64_t> positions,
                  std::span<const std::int64_t> slots, RequestOf&& request_of) {
    sg::WriteInput in;
    in.input_ids = vector_view(ids);
    in.positions = vector_view(positions);
    in.out_cache_loc = vector_view(slots);
    const std::int64_t before = slot_runs_;
    sg::write(context(pool, moment), plan.view(), in, {}, options_.threads);
    count(moment == Moment::tail ? stats.records_written : ignored_, pool, moment, before);
    drain(pool, moment, [&](Violation& v, std::int64_t token) {
      const std::vector<std::int64_t>& ends = plan.offsets;  // the first is 0
      const auto end = std::upper_bound(ends.begin() + 1, ends.end(), token);
      if (end == ends.end()) return;
      const auto row = static_cast<std::size_t>(end - ends.begin() - 1);
      const std::size_t r = request_of(row);
      v.request = batch.owners[r];
      v.row = batch.rows[r];
      v.prev_slot =
          token == ends[row] ? plan.seeds[row] : slots[static_cast<std::size_t>(token - 1)];
    });
  }

  void count(std::uint64_t& counter, int pool, Moment moment, std::int64_t before) {
    const auto n = static_cast<std::uint64_t>(slot_runs_ - before);
    counter += n;
    if (moment != Moment::head) {
      stats.bytes_digested += n * static_cast<std::uint64_t>(at(pool).slot_bytes);
    }
    stats.out_of_range = static_cast<std::uint64_t>(out_of_range_);
  }

  void sweep_now() {
    bool swept = false;
    for (int pool = 0; pool < static_cast<int>(pools_.size()); ++pool) {
      SglangPool& p = at(pool);
      // A copy: the function may put another in its own place, or detach the pool.
      const auto source = p.sweep_source;
      if (!source) continue;
      std::vector<SweepEntry> entries;
      source(entries);
      if (!is_attached(pool)) continue;
      if (sg::translates(p.spec)) {
        sg::translate_sweep(entries, p.spec.window, p.spec.full_to_swa);
      }
      sg::HostVerifyPlan plan = sg::sweep_plan(entries);
      verify(pool, Moment::sweep, plan, {}, false);
      swept = true;
    }
    if (swept) ++stats.sweeps;
  }

  /// The ring's new rows as violations, which `complete` fills up, by the entry or token that each
  /// is about; then it is empty again.
  template <class Complete>
  void drain(int pool, Moment moment, Complete&& complete) {
    const auto found = static_cast<std::int64_t>(ring_index_);
    const std::int64_t stored = std::min(found, options_.ring_capacity);
    for (std::int64_t i = 0; i < stored; ++i) {
      const sg::ViolationRow& row = ring_[static_cast<std::size_t>(i)];
      Violation v;
      v.format = Format::sglang;
      v.moment = moment;
      v.pool = pool;
      v.slot = row.slot;
      v.stored_position = row.position;
      v.stored_token = row.stored_token;
      v.expected_token = row.expected_token;
      v.stored_chain = static_cast<std::uint64_t>(row.stored_chain_hash);
      v.reasons = sg::reasons_of(row.fail_reason_bits);
      if (sg::is_of_a_write(row.fail_reason_bits)) {
        v.expected_position = row.expected_aux;
      } else {
        v.expected_chain = static_cast<std::uint64_t>(row.expected_aux);
      }
      v.first_step = v.last_step = step;
      complete(v, ring_entries_[static_cast<std::size_t>(i)]);
      const std::uint64_t life = at(pool).has(v.slot) ? at(pool).lives[v.slot] : 0;
      reporter_.report(std::move(v), life);
    }
    if (found > stored) reporter_.drop(static_cast<std::uint64_t>(found - stored));
    ring_index_ = 0;
  }

  std::deque<SglangPool> pools_;
  std::vector<sg::ViolationRow> ring_;
  std::vector<std::int64_t> ring_entries_;  // what each row is about
  std::int32_t ring_index_ = 0, position_assert_ = 1;
  std::int64_t slot_runs_ = 0, kernel_runs_ = 0, out_of_range_ = 0;
  std::uint64_t ignored_ = 0;
  std::uint32_t life_ = 0;
};

}  // namespace

std::unique_ptr<Backend> make_sglang_backend(const Options& options, Reporter& reporter) {
  return std::make_unique<SglangBackend>(options, reporter);
}

}  // namespace serinus::canary
