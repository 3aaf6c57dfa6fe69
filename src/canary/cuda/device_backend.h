// What the Monitor's backends for pools on a GPU share, whatever the format: how bytes get there,
// how what the checks found comes back, and copies of the engine's memory.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include <serinus/canary_cuda.h>

#include "canary/backend.h"
#include "canary/cuda/staging.h"
#include "gpu/async.h"
#include "gpu/memory.h"

namespace serinus::canary::cuda {

class DeviceBackend : public Backend {
 public:
  DeviceBackend(const Options& options, Reporter& reporter, Device device);

  bool is_captured(Stream stream) const override { return gpu::capture_of(device_, stream) != 0; }
  void drain() override;
  void wait() override;
  std::uint64_t device_steps() const override;
  void add_device_counts(Stats& stats) const override;

  std::vector<std::int32_t> cells(const TensorView& table, std::int64_t row,
                                  std::int64_t length) const override;
  std::vector<std::int64_t> full_to_swa(int pool) const override;
  std::vector<std::uint8_t> slot_bytes(int pool, std::int64_t slot) const override;

 protected:
  virtual int num_pools() const = 0;
  virtual const PoolSpec& spec(int pool) const = 0;
  /// Its bytes, in the order of slot_bytes(); none with Depth::none.
  virtual std::span<const Source> sources(int pool) const = 0;
  /// Launches all that was announced. False: there was nothing.
  virtual bool pass_on(Stream stream) = 0;
  /// Adds to a fault what the device does not know, and says in which life of its slot it is;
  /// `source` as in RingContent. False: the device does not know it all yet.
  virtual bool describe(Violation& v, int source, std::uint64_t& life) const = 0;

  /// The pools that a call names; none named: all that are attached.
  std::vector<int> pools_of(std::span<const int> named) const;
  /// Arrays on the host cannot be part of a graph.
  void check_stream(Stream stream) const;
  /// To be called after launches: what wait() waits for.
  void launched(Stream stream);
  /// `slots` more wait for the next step. Very many do not wait, and follow those before them.
  void gathered(std::size_t slots);
  /// What the stream does next comes after all that was announced.
  void follow_announced(Stream stream) const;
  /// To be called after the launches that bring announcements.
  void mark_announced(Stream stream);
  /// Of a pool that is given up: what was announced is brought, and none calls it attached.
  void retire(int pool);
  /// Waits for the device, and brings it all that was announced.
  void settle() const;
  /// Half of the ring, where that has been delivered.
  void make_room(Stream stream);
  [[noreturn]] void unsupported(const std::string& what) const;

  const Device device_;
  const gpu::OwnStream own_;
  Staging staging_;
  std::size_t pending_slots_ = 0;     // whose announcements wait for a step
  bool in_graphs_ = false;            // the moments: no event tells when those are done
  std::uint64_t flushed_sweeps_ = 0;  // beside those that the device counts; under drain_mutex_
  mutable std::mutex drain_mutex_;

 private:
  void deliver(const RingContent& content, std::uint64_t complete_to);
  void take_counts(const RingCounts& counts);

  gpu::Event announced_at_;
  void* announced_in_ = nullptr;      // the stream
  std::map<void*, gpu::Event> ends_;  // by stream
  gpu::Memory ring_memory_;

 protected:
  const DeviceRing ring_;

 private:
  // What was found, on its way to the reporter.
  struct Known {
    std::uint64_t count = 0;
    Reason reasons = Reason::none;
  };
  gpu::PinnedMemory ring_copy_;
  gpu::Event copied_;
  bool copying_ = false;
  RingCounts counts_;
  double last_sweep_time_ = 0;
  std::uint64_t complete_ = 0;                      // numbers up to this are whole in the next copy
  std::uint64_t recycled_ = 0;                      // up to this, rows were given up
  std::uint64_t delivered_ = 0;                     // up to this, the reporter knows
  std::unordered_map<std::uint64_t, Known> known_;  // by number
};

}  // namespace serinus::canary::cuda
