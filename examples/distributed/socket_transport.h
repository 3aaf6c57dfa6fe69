// The transport between processes over host memory: one stream socket for each pair of ranks.
#pragma once

#include <chrono>
#include <span>
#include <string>
#include <vector>

#include "transport.h"

namespace distributed {

class SocketTransport : public Transport {
 public:
  /// `sockets[r]` is connected to rank r; that of this rank itself is not used. Takes them over.
  SocketTransport(int rank, std::vector<int> sockets, std::chrono::milliseconds timeout);
  ~SocketTransport() override;
  SocketTransport(const SocketTransport&) = delete;
  SocketTransport& operator=(const SocketTransport&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(sockets_.size()); }
  void send(int peer, std::span<const Segment> segments) override;
  void receive(int peer, std::span<const Segment> segments) override;
  void all_gather(Segment mine, Segment all) override;
  /// Whether the peer has closed its end: for who waits for it in another way.
  bool has_hung_up(int peer) const;

 private:
  /// Bytes on their way in one direction of one socket.
  struct Flow {
    int peer = 0;
    bool out = false;
    std::vector<Segment> segments;
    std::size_t next = 0;  ///< the first segment that is not through
  };
  /// Moves all flows at once, so that two ranks that send to each other cannot block each other.
  void exchange(std::vector<Flow> flows, const char* doing);
  void advance(Flow& flow, const char* doing);
  [[noreturn]] void lost(int peer, std::string why, const char* doing);

  int rank_;
  std::vector<int> sockets_;
  std::chrono::milliseconds timeout_;
  std::string broken_;  ///< what went wrong first
};

/// Sockets for `size` ranks of this machine, each connected to each other: [a][b] is a's end to b,
/// -1 where a == b. Made before the ranks fork; keep_ends_of() then keeps one rank's ends alone, so
/// that a rank that ends is noticed.
std::vector<std::vector<int>> connect_ranks(int size);
std::vector<int> keep_ends_of(int rank, std::vector<std::vector<int>> sockets);

}  // namespace distributed
