// What a decoding rank is sent, after an honest greeting: any bytes end in an error that has a
// page, or in a session that is over; nothing but whole messages is ever acted on.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>

#include <serinus/error.h>

#include "memory.h"
#include "transfer.h"

namespace {

using namespace distributed;

/// A peer that has said everything already, and hangs up at the end of it.
class Recording : public Transport {
 public:
  Recording(const Greeting& greeting, std::span<const std::uint8_t> bytes)
      : greeting_(greeting), left_(bytes) {}
  int rank() const override { return 1; }
  int size() const override { return 2; }
  void send(int, std::span<const Segment>) override {}
  void all_gather(Segment, Segment) override { std::abort(); }
  void receive(int, std::span<const Segment> segments) override {
    if (received_++ == 0) {
      std::memcpy(segments[0].data, &greeting_.hello, sizeof greeting_.hello);
      return;
    }
    if (received_ == 2) {
      std::memcpy(segments[0].data, &greeting_.terms, sizeof greeting_.terms);
      return;
    }
    for (const Segment& s : segments) {
      const auto bytes = static_cast<std::size_t>(s.bytes);
      if (bytes > left_.size()) {
        serinus::raise("peer-lost", {{"peer", "0"}, {"got", "no more"}, {"doing", "reading"}});
      }
      if (bytes > 0) std::memcpy(s.data, left_.data(), bytes);
      left_ = left_.subspan(bytes);
    }
  }

 private:
  Greeting greeting_;
  std::span<const std::uint8_t> left_;
  int received_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // Small, so that much happens in few bytes: 12 bytes a token, pages of 4.
  const Model model{.layers = 1, .page_size = 4, .heads = 1, .head_size = 2, .side_bytes = 4};
  HostMemory memory;
  Node node(model, 16, 1, memory);
  Recording peer(node.greeting(), {data, size});
  Decode decode(node, {peer, peer, 0}, Fault::none, [](const std::string&) {});
  try {
    decode.run(2);
  } catch (const serinus::RuntimeError& e) {
    if (!e.id().starts_with("SRN800")) std::abort();
  }
  // Tokens that are verified were sent: 4 bytes of the prompt each, at the least.
  if (decode.outcome().verified > static_cast<std::int64_t>(size / 4)) std::abort();
  return 0;
}
