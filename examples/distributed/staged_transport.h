// The transport of KV that lies in a GPU's memory over sockets: through host memory, as engines do
// where no link joins the GPUs. Ranks may share one GPU.
#pragma once

#include <vector>

#include "memory.h"
#include "transport.h"

namespace distributed {

class StagedTransport : public Transport {
 public:
  /// Both outlive this.
  StagedTransport(Transport& host, Memory& memory) : host_(host), memory_(memory) {}
  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  void send(int peer, std::span<const Segment> segments) override {
    const std::vector<Segment> staged = stage(segments);
    for (std::size_t i = 0; i < segments.size(); ++i) {
      memory_.read(staged[i].data, segments[i].data, segments[i].bytes);
    }
    host_.send(peer, staged);
  }
  void receive(int peer, std::span<const Segment> segments) override {
    const std::vector<Segment> staged = stage(segments);
    host_.receive(peer, staged);
    for (std::size_t i = 0; i < segments.size(); ++i) {
      memory_.write(segments[i].data, staged[i].data, segments[i].bytes);
    }
  }
  /// In host memory, as digests are.
  void all_gather(Segment mine, Segment all) override { host_.all_gather(mine, all); }

 private:
  /// Room in host memory for each segment, until the next call.
  std::vector<Segment> stage(std::span<const Segment> segments) {
    buffers_.clear();
    std::vector<Segment> staged;
    for (const Segment& s : segments) {
      staged.push_back({buffers_.emplace_back(static_cast<std::size_t>(s.bytes)).data(), s.bytes});
    }
    return staged;
  }

  Transport& host_;
  Memory& memory_;
  std::vector<std::vector<std::uint8_t>> buffers_;
};

}  // namespace distributed
