// Bytes of a memory that the CPU cannot reach, through host memory to the memory of another rank.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <new>
#include <thread>
#include <vector>

#include "socket_transport.h"
#include "staged_transport.h"

namespace distributed {
namespace {

constexpr std::int64_t kBytes = 1 << 20;

/// As far away as a GPU's: whoever touches an address of it is ended.
class FarMemory : public Memory {
 public:
  FarMemory() {
    void* const reserved = mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (reserved == MAP_FAILED) throw std::bad_alloc();
    far_ = static_cast<std::uint8_t*>(reserved);
  }
  ~FarMemory() override { munmap(far_, kBytes); }
  std::uint8_t* allocate(std::int64_t) override { return far_; }
  void write(std::uint8_t* to, const std::uint8_t* from, std::int64_t bytes) override {
    if (bytes > 0) std::memcpy(host_.data() + (to - far_), from, static_cast<std::size_t>(bytes));
  }
  void read(std::uint8_t* to, const std::uint8_t* from, std::int64_t bytes) override {
    if (bytes > 0) std::memcpy(to, host_.data() + (from - far_), static_cast<std::size_t>(bytes));
  }

 private:
  std::uint8_t* far_ = nullptr;
  std::vector<std::uint8_t> host_ = std::vector<std::uint8_t>(kBytes);
};

TEST(StagedTransport, BringsEachSegmentToItsPlace) {
  std::vector<std::vector<int>> sockets = connect_ranks(2);
  // In no order; one is empty.
  const std::vector<std::pair<std::int64_t, std::int64_t>> runs{
      {7000, 4096}, {3, 1}, {500, 0}, {kBytes - 300001, 300001}, {20000, 77}};
  const auto byte = [](int round, std::int64_t i) {
    return static_cast<std::uint8_t>(i * 31 + i / 257 + round);
  };
  const auto rank = [&](int number) {
    SocketTransport control(number, sockets[static_cast<std::size_t>(number)],
                            std::chrono::milliseconds(20000));
    FarMemory memory;
    StagedTransport staged(control, memory);
    std::uint8_t* const at = memory.allocate(kBytes);
    std::vector<Segment> segments;
    for (const auto& [begin, bytes] : runs) segments.push_back({at + begin, bytes});
    std::vector<std::uint8_t> all(kBytes);
    for (int round = 0; round < 3; ++round) {
      if (number == 0) {
        for (std::int64_t i = 0; i < kBytes; ++i) all[static_cast<std::size_t>(i)] = byte(round, i);
        memory.write(at, all.data(), kBytes);
        staged.send(1, segments);
        continue;
      }
      staged.receive(0, segments);
      std::vector<std::uint8_t> want(kBytes);
      for (const auto& [begin, bytes] : runs) {
        for (std::int64_t i = begin; i < begin + bytes; ++i) {
          want[static_cast<std::size_t>(i)] = byte(round, i);
        }
      }
      memory.read(all.data(), at, kBytes);
      EXPECT_TRUE(all == want) << round;
    }
  };
  std::thread other(rank, 0);
  rank(1);
  other.join();
}

}  // namespace
}  // namespace distributed
