// For peers that are not what they should be.
#pragma once

#include <functional>
#include <span>
#include <utility>

#include "transport.h"

namespace distributed {

/// Does something to what is sent before it goes out: counts, bends bytes, stops, dies.
class BentTransport : public Transport {
 public:
  /// `bend(n, segments)` before the n-th send.
  BentTransport(Transport& real, std::function<void(int, std::span<const Segment>)> bend)
      : real_(real), bend_(std::move(bend)) {}
  int rank() const override { return real_.rank(); }
  int size() const override { return real_.size(); }
  void send(int peer, std::span<const Segment> segments) override {
    bend_(sends_++, segments);
    real_.send(peer, segments);
  }
  void receive(int peer, std::span<const Segment> segments) override {
    real_.receive(peer, segments);
  }
  void all_gather(Segment mine, Segment all) override { real_.all_gather(mine, all); }

 private:
  Transport& real_;
  std::function<void(int, std::span<const Segment>)> bend_;
  int sends_ = 0;
};

}  // namespace distributed
