// Prefill on one rank, decode on another: the two ends of a KV transfer, with the records beside
// the bytes, and the ways in which such a transfer goes wrong. What is sent when:
// docs/design/distributed.md.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <serinus/canary.h>

#include "message.h"
#include "node.h"
#include "transport.h"

namespace distributed {

enum class Fault : std::uint8_t {
  none,
  torn_page,
  missing_layer,
  missing_side_buffer,
  late_write,
  wrong_slots,
  swapped_k_and_v,
  stale_retry,
  half_of_the_heads,
  missing_records,
};

/// What a fault must be caught as.
struct FaultEntry {
  Fault fault;
  std::string_view name;
  std::string_view what;  ///< what the two ranks do wrong
  serinus::canary::Reason reason;
  int layer;                 ///< the first damaged one; -1: any or none
  std::string_view segment;  ///< how its name begins
  std::int64_t pages;        ///< that the faulty request must have
};
std::span<const FaultEntry> faults();
const FaultEntry& entry_of(Fault fault);

/// How a rank is connected: `control` moves host memory, `data` the memory that the KV lies in;
/// over host memory they are the same.
struct Link {
  Transport& control;
  Transport& data;
  int peer;
};

/// What is done with a line of text about the session's course.
using Say = std::function<void(const std::string&)>;

/// The prefilling rank. The fault is injected into the first transfer of the second request.
class Prefill {
 public:
  Prefill(Node& node, Link link, Fault fault, Say say);
  /// Prefills the prompts, sends each until the other side found it sound, and says goodbye.
  /// Returns false where a request was refused twice, or this rank's own canary saw something.
  /// Throws std::invalid_argument, before anything is sent, where the second prompt is missing or
  /// too short for the fault.
  bool run(std::span<const std::vector<std::uint32_t>> prompts);

 private:
  /// A request in the pool, with its records as they were stamped: what happens to its bytes from
  /// there on, they will tell.
  struct Prefilled {
    Request request;
    std::vector<serinus::canary::Record> records;
    std::vector<std::uint32_t> source_digests;
    std::uint32_t transfer = 0;
  };
  struct PageRange {
    std::int64_t first, count;  // pages of the request
    std::int64_t begin, end;    // bytes of each
  };

  Prefilled prefill(Owner id, const std::vector<std::uint32_t>& prompt);
  bool send(Prefilled& p, Fault fault);
  void offer(Prefilled& p);
  void cancel(const Prefilled& p);
  void put_layers(const Prefilled& p, int first, int last, Fault fault);
  void put(const Prefilled& p, int layer, int buffer, PageRange range, int as_buffer);
  void put_records(const Prefilled& p);
  bool finish(const Prefilled& p);
  void overwrite(const Request& request, std::int64_t page);

  Node& node_;
  Link link_;
  Fault fault_;
  Say say_;
  std::uint32_t transfers_ = 0;
};

/// The decoding rank: receives, verifies before the first token, decodes with the rolling budget.
class Decode {
 public:
  /// What the session came to. The canary's word is compared with the truth, the bytes themselves.
  struct Outcome {
    std::vector<serinus::canary::Violation> violations;
    std::int64_t verified = 0;  ///< tokens that were received and found sound
    std::int64_t decoded = 0;   ///< tokens
    std::int64_t damaged = 0;   ///< slots whose bytes were not the sender's model's
    std::int64_t missed = 0;    ///< damaged, and no violation named them
    std::int64_t imagined = 0;  ///< named by a violation, and sound
  };

  Decode(Node& node, Link link, Fault fault, Say say);
  /// Serves until the peer says goodbye, then decodes `steps` tokens of each request.
  Outcome run(int steps);

  const Outcome& outcome() const { return outcome_; }

 private:
  struct Registration {  // where a transfer's bytes go, as a NIC would know it
    Owner request = 0;
    std::vector<std::int64_t> pages;  // none where the pool had no room
    std::int64_t tokens = 0;
    std::int64_t recorded = 0;  // tokens whose records have come
    bool has_room() const { return !pages.empty(); }
  };
  void on_offer(const Message& m);
  void on_put(const Message& m);
  void on_records(const Message& m);
  void on_done(const Message& m);
  void on_cancel(const Message& m);
  Registration& registered(const Message& m);
  void decode(int steps);
  void collect();
  void judge(const Request& request, std::int64_t recorded);
  void finish();

  Node& node_;
  Link link_;
  Fault fault_;
  Say say_;
  std::map<std::uint32_t, Registration> registrations_;
  std::map<Owner, Request> arriving_, live_;
  std::map<std::int64_t, serinus::canary::Reason> named_;  // slots in violations, not judged yet
  Outcome outcome_;
};

/// Whether the session went as it should: without a fault nothing was reported; with one, it was
/// caught as its entry says, at every damaged slot and at no other.
bool as_expected(const Decode::Outcome& outcome, Fault fault);

}  // namespace distributed
