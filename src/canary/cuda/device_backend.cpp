#include "canary/cuda/device_backend.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/checks.h"
#include "base/raise.h"
#include "canary/cuda/serinus/memory.h"
#include "canary/cuda/serinus/params.h"
#include "gpu/device.h"

namespace serinus::canary::cuda {

namespace {
constexpr std::size_t kMostPending = 1 << 20;  // slots that wait for a step
}  // namespace

DeviceBackend::DeviceBackend(const Options& options, Reporter& reporter, Device device)
    : Backend(options, reporter),
      device_((gpu::require_gpu("canary pool", device), device)),
      own_(device),
      staging_(device),
      announced_at_(device),
      ring_memory_(device, ring_bytes(options.ring_capacity)),
      ring_{{ring_memory_.data(),
             DType::u8,
             {static_cast<std::int64_t>(ring_memory_.bytes())},
             device},
            options.ring_capacity},
      ring_copy_(device, ring_memory_.bytes()),
      copied_(device) {
  clear(ring_.memory, own_.get());  // the gaps between its parts, too: it is copied as a whole
  gpu::synchronize(device_);
}

std::vector<int> DeviceBackend::pools_of(std::span<const int> named) const {
  std::vector<int> pools(named.begin(), named.end());
  if (!pools.empty()) return pools;
  for (int i = 0; i < num_pools(); ++i) {
    if (is_attached(i)) pools.push_back(i);
  }
  return pools;
}

void DeviceBackend::check_stream(Stream stream) const {
  if (is_captured(stream)) {
    unsupported("a batch of host arrays in a graph: give a cuda::DeviceBatch");
  }
}

void DeviceBackend::unsupported(const std::string& what) const {
  raise(errors::Page::canary_not_on_a_gpu,
        {{"argument", "pool"}, {"device", device_string(device_)}, {"got", what}});
}

// ---------------------------------------------------------------- what is announced

void DeviceBackend::gathered(std::size_t slots) {
  pending_slots_ += slots;
  // They are no part of a graph.
  const Stream stream{announced_in_};
  if (pending_slots_ < kMostPending || is_captured(stream)) return;
  pass_on(stream);
  launched(stream);
}

void DeviceBackend::follow_announced(Stream stream) const {
  if (announced_in_ != stream.handle) announced_at_.hold(stream);
}

void DeviceBackend::mark_announced(Stream stream) {
  announced_at_.record(stream);
  announced_in_ = stream.handle;
}

void DeviceBackend::retire(int pool) {
  settle();
  const std::lock_guard lock(drain_mutex_);  // a poll() asks which are attached
  detached_.push_back(pool);
}

// ---------------------------------------------------------------- what was found

void DeviceBackend::launched(Stream stream) {
  if (is_captured(stream)) {
    in_graphs_ = true;
    return;
  }
  ends_.try_emplace(stream.handle, device_).first->second.record(stream);
}

void DeviceBackend::settle() const {
  gpu::synchronize(device_);
  auto& self = const_cast<DeviceBackend&>(*this);
  if (self.pass_on(own_.get())) gpu::synchronize(device_);
}

void DeviceBackend::wait() {
  if (in_graphs_) {
    gpu::synchronize(device_);
  } else {
    for (const auto& [stream, end] : ends_) end.hold(own_.get());
  }
  pass_on(own_.get());
  const std::lock_guard lock(drain_mutex_);
  gpu::copy_to_host(device_, ring_copy_.data(), ring_memory_.data(), ring_memory_.bytes(),
                    own_.get());
  gpu::synchronize(device_, own_.get());
  copying_ = false;
  const RingContent content =
      read_ring({ring_copy_.data(), ring_copy_.bytes()}, options_.ring_capacity);
  deliver(content, content.last_number);
  take_counts(content.counts);
  complete_ = content.last_number;
}

void DeviceBackend::drain() {
  const std::lock_guard lock(drain_mutex_);
  const gpu::BesideCapture relaxed;
  if (copying_) {
    if (!copied_.done()) return;
    copying_ = false;
    RingHeader header;
    std::memcpy(&header, ring_copy_.data(), sizeof header);
    if (header.next != delivered_ || header.counts.sightings != counts_.sightings) {
      deliver(read_ring({ring_copy_.data(), ring_copy_.bytes()}, options_.ring_capacity),
              complete_);
    }
    take_counts(header.counts);
    complete_ = header.next;
  }
  gpu::copy_to_host(device_, ring_copy_.data(), ring_memory_.data(), ring_memory_.bytes(),
                    own_.get());
  copied_.record(own_.get());
  copying_ = true;
}

/// Rows are written while the ring is copied: those numbered up to `complete` were there before.
void DeviceBackend::deliver(const RingContent& content, std::uint64_t complete) {
  for (std::size_t i = 0; i < content.violations.size(); ++i) {
    const std::uint64_t number = content.numbers[i];
    if (number > complete || number <= recycled_) continue;
    Violation v = content.violations[i];
    std::uint64_t life = 0;
    if (!describe(v, content.sources[i], life)) {
      complete = number - 1;  // the next copy knows
      break;
    }
    Known& known = known_[number];
    const std::uint64_t more = v.count - std::min(known.count, v.count);
    if (more == 0 && (v.reasons | known.reasons) == known.reasons) continue;
    known = {v.count, v.reasons};
    v.count = std::max<std::uint64_t>(more, 1);
    reporter_.report(std::move(v), life);
  }
  delivered_ = std::max(delivered_, std::min(complete, content.last_number));
}

void DeviceBackend::take_counts(const RingCounts& counts) {
  if (counts.dropped > counts_.dropped) reporter_.drop(counts.dropped - counts_.dropped);
  if (counts.sweeps > counts_.sweeps) {
    last_sweep_time_ =
        std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  }
  counts_ = counts;
}

void DeviceBackend::make_room(Stream stream) {
  const std::lock_guard lock(drain_mutex_);
  if (delivered_ - recycled_ <= static_cast<std::uint64_t>(options_.ring_capacity) / 2) return;
  recycle_ring(ring_, delivered_, stream);
  recycled_ = delivered_;
  std::erase_if(known_, [&](const auto& k) { return k.first <= recycled_; });
}

std::uint64_t DeviceBackend::device_steps() const {
  const std::lock_guard lock(drain_mutex_);
  return counts_.steps;
}

void DeviceBackend::add_device_counts(Stats& s) const {
  const std::lock_guard lock(drain_mutex_);
  s.records_verified += counts_.records_verified;
  s.records_written += counts_.records_written;
  s.bytes_digested += counts_.bytes_digested;
  s.skipped_empty += counts_.skipped_empty;
  s.sweeps += counts_.sweeps + flushed_sweeps_;
  s.out_of_range += counts_.out_of_range;
  s.last_sweep_time = std::max(s.last_sweep_time, last_sweep_time_);
}

// ---------------------------------------------------------------- the engine's memory

std::vector<std::int32_t> DeviceBackend::cells(const TensorView& table, std::int64_t row,
                                               std::int64_t length) const {
  check_rank("req_to_token", table, 2, "(rows, max_len)");
  check_dtype("req_to_token", table, DType::i32);
  check_device("req_to_token", table, device_);
  check_last_dim_contiguous("req_to_token", table);
  std::vector<std::int32_t> found;
  if (row < 0 || row >= table.shape[0]) return found;
  found.resize(static_cast<std::size_t>(std::clamp<std::int64_t>(length, 0, table.shape[1])));
  settle();
  gpu::copy_to_host(device_, found.data(), table.as<std::int32_t>() + row * table.strides[0],
                    found.size() * sizeof(std::int32_t), own_.get());
  gpu::synchronize(device_);
  return found;
}

std::vector<std::int64_t> DeviceBackend::full_to_swa(int pool) const {
  const std::span<const std::int64_t> table = spec(pool).full_to_swa;
  std::vector<std::int64_t> copy(table.size());
  gpu::synchronize(device_);
  gpu::copy_to_host(device_, copy.data(), table.data(), table.size_bytes(), own_.get());
  gpu::synchronize(device_);
  return copy;
}

std::vector<std::uint8_t> DeviceBackend::slot_bytes(int pool, std::int64_t slot) const {
  gpu::synchronize(device_);
  std::int64_t bytes = 0;
  for (const Source& s : sources(pool)) bytes += s.bytes;
  std::vector<std::uint8_t> copy(static_cast<std::size_t>(bytes));
  std::uint8_t* to = copy.data();
  const std::int64_t page = spec(pool).layout.page_size;
  for (const Source& s : sources(pool)) {
    gpu::copy_to_host(
        device_, to, s.base + slot / page * s.page_stride + s.offset + slot % page * s.token_stride,
        static_cast<std::size_t>(s.bytes), own_.get());
    to += s.bytes;
  }
  gpu::synchronize(device_);
  return copy;
}

}  // namespace serinus::canary::cuda
