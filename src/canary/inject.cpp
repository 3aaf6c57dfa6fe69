// Faults on purpose, built with SERINUS_INJECT=ON only.
#include <algorithm>
#include <cstring>
#include <unordered_set>

#include <serinus/canary_inject.h>
#include <serinus/log.h>

#include "base/checks.h"
#include "base/raise.h"
#include "canary/tables.h"
#include "gpu/async.h"

namespace serinus::canary {

namespace {

/// Memory of the engine's, wherever it lies. On a GPU each call waits for the device: a drill may.
void read(Device device, void* to, const void* from, std::size_t bytes) {
  if (device.type == DeviceType::cpu) {
    std::memcpy(to, from, bytes);
    return;
  }
  gpu::synchronize(device);
  gpu::copy_to_host(device, to, from, bytes, {});
  gpu::synchronize(device);
}
void write(Device device, void* to, const void* from, std::size_t bytes) {
  if (device.type == DeviceType::cpu) {
    std::memcpy(to, from, bytes);
    return;
  }
  gpu::synchronize(device);
  gpu::copy_to_device(device, to, from, bytes, {});
  gpu::synchronize(device);
}

std::int32_t* cell_at(const TensorView& table, std::int64_t row, std::int64_t cell) {
  return table.as<std::int32_t>() + row * table.strides[0] + cell * table.strides[1];
}

/// Cells [begin, end) of a row.
std::vector<std::int32_t> cells_of(const TensorView& table, std::int64_t row, std::int64_t begin,
                                   std::int64_t end) {
  std::vector<std::int32_t> cells(static_cast<std::size_t>(std::max<std::int64_t>(0, end - begin)));
  if (table.strides[1] == 1 && !cells.empty()) {
    read(table.device, cells.data(), cell_at(table, row, begin), cells.size() * sizeof cells[0]);
    return cells;
  }
  for (std::size_t i = 0; i < cells.size(); ++i) {
    read(table.device, &cells[i], cell_at(table, row, begin + static_cast<std::int64_t>(i)),
         sizeof cells[i]);
  }
  return cells;
}

std::unordered_set<std::int64_t> written_now(const Batch& batch) {
  std::unordered_set<std::int64_t> slots;
  for (const std::int64_t s : batch.out_cache_loc) slots.insert(s);
  return slots;
}

/// Slot of a pool with (or without) a table of its own; 0: it left the window.
std::int64_t slot_of(std::int64_t location, const std::vector<std::int64_t>& swa) {
  if (swa.empty()) return location;
  return location < std::ssize(swa) ? swa[static_cast<std::size_t>(location)] : 0;
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
  std::vector<Cell> cells;
  const TensorView& table = batch.req_to_token;
  if (table.data == nullptr) return cells;
  const PoolSpec& spec = monitor_.pool(options_.pool);
  const std::vector<std::int64_t> swa = monitor_.full_to_swa(options_.pool);
  const std::unordered_set<std::int64_t> now = written_now(batch);
  for (std::size_t i = 0; i < batch.rows.size(); ++i) {
    const std::int64_t row = batch.rows[i];
    if (row <= 0 || row >= table.shape[0]) continue;
    const std::int64_t end = std::min(batch.prefix_lens[i], table.shape[1]);
    const bool windowed = spec.kind == PoolKind::swa && spec.window > 0;
    const std::int64_t begin = windowed ? std::max<std::int64_t>(0, end - spec.window + 1) : 0;
    const std::vector<std::int32_t> locations = cells_of(table, row, begin, end);
    for (std::size_t k = 0; k < locations.size(); ++k) {
      const std::int32_t location = locations[k];
      if (location < 1 || now.contains(location)) continue;
      const std::int64_t slot = slot_of(location, swa);
      if (slot < 1 || slot >= spec.num_slots) continue;
      cells.push_back({row, begin + static_cast<std::int64_t>(k), slot, location});
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
  std::uint8_t* const place = b.data + byte_offset(spec.layout, *segment, at.slot, stride);
  std::uint8_t before = 0;
  read(spec.device, &before, place, 1);
  const auto after = static_cast<std::uint8_t>(before ^ 0xFF);
  write(spec.device, place, &after, 1);
  done.push_back({p, step_, options_.pool, at.slot, at.row, at.cell, before, after});
  tell(done.back());
}

std::vector<Injected> Injector::before_step(const Batch& batch, std::span<std::int64_t> input_ids,
                                            std::span<std::int64_t> positions) {
  check_batch(batch, static_cast<std::size_t>(monitor_.num_pools()),
              monitor_.pool(options_.pool).device);
  std::vector<Injected> done;
  const std::vector<Cell> cells = active_cells(batch);
  if (draw(Perturbation::req_to_token) && cells.size() >= 2) {
    const Cell& to = cells[pick(cells.size())];
    const Cell& from = cells[pick(cells.size())];
    const std::int32_t before = to.location, after = from.location;
    if (before != after) {
      write(batch.req_to_token.device, cell_at(batch.req_to_token, to.row, to.cell), &after,
            sizeof after);
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
      flip(done, Perturbation::kv_unused_cache, {-1, -1, unused[pick(unused.size())], -1});
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
  const PoolSpec& spec = monitor_.pool(options_.pool);
  check_batch(batch, static_cast<std::size_t>(monitor_.num_pools()), spec.device);
  std::vector<Injected> done;
  if (draw(Perturbation::kv_post_forward)) {
    const std::vector<std::int64_t> swa = monitor_.full_to_swa(options_.pool);
    std::vector<std::int64_t> slots;
    for (const std::int64_t location : batch.out_cache_loc) {
      const std::int64_t slot = location < 1 ? 0 : slot_of(location, swa);
      if (slot >= 1 && slot < spec.num_slots) slots.push_back(slot);
    }
    if (!slots.empty()) {
      flip(done, Perturbation::kv_post_forward, {-1, -1, slots[pick(slots.size())], -1});
    }
  }
  ++step_;
  return done;
}

}  // namespace serinus::canary
