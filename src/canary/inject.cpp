// Faults on purpose, built with SERINUS_INJECT=ON only.
#include <algorithm>
#include <unordered_set>

#include <serinus/canary_inject.h>
#include <serinus/log.h>

#include "base/checks.h"
#include "base/raise.h"
#include "canary/tables.h"

namespace serinus::canary {

namespace {

std::unordered_set<std::int64_t> written_now(const Batch& batch) {
  std::unordered_set<std::int64_t> slots;
  for (const std::int64_t s : batch.out_cache_loc) slots.insert(s);
  return slots;
}

void tell(const Injected& i) {
  log(LogLevel::warning, to_text(i));
}

}  // namespace

Injector::Injector(Monitor& monitor, InjectOptions options)
    : monitor_(monitor), options_(options), random_(options.seed) {
  if (!options.enabled) {
    raise(errors::Page::injection_off,
          {{"argument", "enabled"}, {"why", "InjectOptions::enabled is not set"}});
  }
}

bool Injector::draw(Perturbation p) {
  const double probability = options_.probability[static_cast<std::size_t>(p)];
  if (probability <= 0 || static_cast<std::int64_t>(step_) < options_.warmup_steps) return false;
  return std::uniform_real_distribution<>(0, 1)(random_) < probability;
}

std::size_t Injector::pick(std::size_t n) {
  return std::uniform_int_distribution<std::size_t>(0, n - 1)(random_);
}

/// Cells that the batch reads, whose slots exist, are not the null slot, and are not written now.
std::vector<Injector::Cell> Injector::active_cells(const Batch& batch) const {
  const Table table = table_of(batch.req_to_token, "req_to_token");
  const PoolSpec& spec = monitor_.pool(options_.pool);
  const std::unordered_set<std::int64_t> now = written_now(batch);
  std::vector<Cell> cells;
  for (std::size_t i = 0; i < batch.rows.size(); ++i) {
    const std::int64_t row = batch.rows[i];
    if (row == 0 || !table.has_row(row)) continue;
    const std::int64_t end = std::min(batch.prefix_lens[i], table.columns);
    const bool windowed = spec.kind == PoolKind::swa && spec.window > 0;
    const std::int64_t begin = windowed ? std::max<std::int64_t>(0, end - spec.window + 1) : 0;
    for (std::int64_t cell = begin; cell < end; ++cell) {
      std::int64_t slot = table.at(row, cell);
      if (slot < 1 || now.contains(slot)) continue;
      if (spec.kind == PoolKind::swa && !spec.full_to_swa.empty()) {
        slot = slot < std::ssize(spec.full_to_swa)
                   ? spec.full_to_swa[static_cast<std::size_t>(slot)]
                   : 0;
      }
      if (slot >= 1 && slot < spec.num_slots) cells.push_back({row, cell, slot});
    }
  }
  return cells;
}

void Injector::flip(std::vector<Injected>& done, Perturbation p, const Cell& at) {
  const PoolSpec& spec = monitor_.pool(options_.pool);
  if (spec.buffers.empty()) return;
  const KvSegment* segment = &spec.layout.segments.front();
  if (p == Perturbation::v_byte) {
    const auto value =
        std::ranges::find(spec.layout.segments, SegmentRole::value, &KvSegment::role);
    segment = value != spec.layout.segments.end() ? &*value : &spec.layout.segments.back();
  }
  const KvBuffer& b = spec.buffers[static_cast<std::size_t>(segment->buffer)];
  const std::int64_t stride =
      b.page_stride != 0 ? b.page_stride
                         : spec.layout.page_bytes[static_cast<std::size_t>(segment->buffer)];
  std::uint8_t& byte = b.data[byte_offset(spec.layout, *segment, at.slot, stride)];
  const std::uint8_t before = byte;
  byte = static_cast<std::uint8_t>(byte ^ 0xFF);
  done.push_back({p, step_, options_.pool, at.slot, at.row, at.cell, before, byte});
  tell(done.back());
}

std::vector<Injected> Injector::before_step(const Batch& batch, std::span<std::int64_t> input_ids,
                                            std::span<std::int64_t> positions) {
  const Device device = monitor_.pool(options_.pool).device;
  if (device.type != DeviceType::cpu) {
    raise(errors::Page::canary_not_on_a_gpu, {{"argument", "pool"},
                                              {"device", device_string(device)},
                                              {"got", "faults on purpose (Injector)"}});
  }
  check_batch(batch, static_cast<std::size_t>(monitor_.num_pools()), device);
  std::vector<Injected> done;
  const std::vector<Cell> cells = active_cells(batch);
  if (draw(Perturbation::req_to_token) && cells.size() >= 2) {
    const Table table = table_of(batch.req_to_token, "req_to_token");
    const Cell& to = cells[pick(cells.size())];
    const Cell& from = cells[pick(cells.size())];
    const std::int32_t before = table.at(to.row, to.cell), after = table.at(from.row, from.cell);
    if (before != after) {
      const_cast<std::int32_t*>(
          table.data)[to.row * table.row_stride + to.cell * table.column_stride] = after;
      done.push_back({Perturbation::req_to_token, step_, options_.pool, to.slot, to.row, to.cell,
                      before, after});
      tell(done.back());
    }
  }
  for (const Perturbation p : {Perturbation::kv_used, Perturbation::v_byte}) {
    if (draw(p) && !cells.empty()) flip(done, p, cells[pick(cells.size())]);
  }
  if (draw(Perturbation::kv_unused_cache)) {
    std::unordered_set<std::int64_t> read;
    for (const Cell& c : cells) read.insert(c.slot);
    const std::unordered_set<std::int64_t> now = written_now(batch);
    std::vector<std::int64_t> unused;
    for (std::int64_t slot = 1; slot < monitor_.pool(options_.pool).num_slots; ++slot) {
      if (!read.contains(slot) && !now.contains(slot) &&
          monitor_.state(options_.pool, slot) == SlotState::written) {
        unused.push_back(slot);
      }
    }
    if (!unused.empty()) {
      flip(done, Perturbation::kv_unused_cache, {-1, -1, unused[pick(unused.size())]});
    }
  }
  if (draw(Perturbation::record) && !cells.empty()) {
    const Cell& c = cells[pick(cells.size())];
    const auto bit = static_cast<std::int64_t>(pick(64));
    Record r = monitor_.records(options_.pool)[static_cast<std::size_t>(c.slot)];
    r.chain ^= std::uint64_t{1} << bit;
    monitor_.set_record(options_.pool, c.slot, r);
    done.push_back({Perturbation::record, step_, options_.pool, c.slot, c.row, c.cell, 0, bit});
    tell(done.back());
  }
  if (draw(Perturbation::token_swap) && input_ids.size() >= 2) {
    const std::size_t a = pick(input_ids.size()), b = pick(input_ids.size());
    if (input_ids[a] != input_ids[b]) {
      done.push_back({Perturbation::token_swap, step_, options_.pool, batch.out_cache_loc[a], -1,
                      positions.empty() ? -1 : positions[a], input_ids[a], input_ids[b]});
      std::swap(input_ids[a], input_ids[b]);
      tell(done.back());
    }
  }
  if (draw(Perturbation::position) && !positions.empty()) {
    const std::size_t a = pick(positions.size());
    done.push_back({Perturbation::position, step_, options_.pool, batch.out_cache_loc[a], -1,
                    positions[a], positions[a], positions[a] + 1});
    ++positions[a];
    tell(done.back());
  }
  return done;
}

std::vector<Injected> Injector::after_step(const Batch& batch) {
  check_batch(batch, static_cast<std::size_t>(monitor_.num_pools()), {});
  std::vector<Injected> done;
  if (draw(Perturbation::kv_post_forward)) {
    const PoolSpec& spec = monitor_.pool(options_.pool);
    std::vector<std::int64_t> slots;
    for (std::int64_t slot : batch.out_cache_loc) {
      if (slot < 1) continue;
      if (spec.kind == PoolKind::swa && !spec.full_to_swa.empty()) {
        slot = slot < std::ssize(spec.full_to_swa)
                   ? spec.full_to_swa[static_cast<std::size_t>(slot)]
                   : 0;
      }
      if (slot >= 1 && slot < spec.num_slots) slots.push_back(slot);
    }
    if (!slots.empty()) {
      flip(done, Perturbation::kv_post_forward, {-1, -1, slots[pick(slots.size())]});
    }
  }
  ++step_;
  return done;
}

}  // namespace serinus::canary
