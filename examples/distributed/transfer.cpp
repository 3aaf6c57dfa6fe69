#include "transfer.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <stdexcept>
#include <utility>

namespace distributed {

using serinus::canary::Reason;
using serinus::canary::Record;
using serinus::canary::Violation;

namespace {

constexpr int kVBuffer = 1, kSideBuffer = 2;
constexpr Owner kFaultyRequest = 2;
constexpr int kTornLayer = 2, kMissingLayer = 3, kLateLayer = 2;
constexpr std::int64_t kTornPage = 3;
constexpr std::int64_t kLatePage = 1, kSwappedPage = 1;

constexpr FaultEntry kFaults[] = {
    {Fault::none, "none", "nothing", Reason::none, -1, "", 0},
    {Fault::torn_page, "torn_page", "one page of one layer arrives up to its middle",
     Reason::kv_bytes, kTornLayer, "v.", kTornPage + 2},
    {Fault::missing_layer, "missing_layer", "a layer is never sent", Reason::kv_bytes,
     kMissingLayer, "k.", 1},
    {Fault::missing_side_buffer, "missing_side_buffer", "K and V are sent, the side buffer is not",
     Reason::kv_bytes, 0, "side", 1},
    {Fault::late_write, "late_write",
     "the sender frees a page too early, and another prefill writes it", Reason::kv_bytes,
     kLateLayer, "k.", kLatePage + 1},
    {Fault::wrong_slots, "wrong_slots", "two pages are delivered to each other's slots",
     Reason::position, -1, "", kSwappedPage + 2},
    {Fault::swapped_k_and_v, "swapped_k_and_v", "K arrives as V and V as K", Reason::kv_bytes, 0,
     "k.", 1},
    {Fault::stale_retry, "stale_retry",
     "a transfer that was given up goes on, into pages that are another request's by now",
     Reason::foreign_write, -1, "", 1},
    {Fault::half_of_the_heads, "half_of_the_heads", "the upper half of the heads is not sent",
     Reason::kv_bytes, 0, "k.head2", 1},
    {Fault::missing_records, "missing_records", "the bytes are sent, their records are not",
     Reason::stale, -1, "", 1},
};

// A fault that tears the fourth page needs one.
void require_pages(Fault fault, std::int64_t tokens, std::int64_t page_size) {
  const FaultEntry& entry = entry_of(fault);
  const std::int64_t least = (entry.pages - 1) * page_size + 1;
  if (tokens >= least) return;
  throw std::invalid_argument("the prompt of request " + std::to_string(kFaultyRequest) +
                              " must have at least " + std::to_string(least) +
                              " tokens for the fault " + std::string(entry.name) + ", got " +
                              std::to_string(tokens));
}

}  // namespace

std::span<const FaultEntry> faults() {
  return kFaults;
}

const FaultEntry& entry_of(Fault fault) {
  return *std::ranges::find(kFaults, fault, &FaultEntry::fault);
}

// ---------------------------------------------------------------- prefill

Prefill::Prefill(Node& node, Link link, Fault fault, Say say)
    : node_(node), link_(link), fault_(fault), say_(std::move(say)) {}

bool Prefill::run(std::span<const std::vector<std::uint32_t>> prompts) {
  if (fault_ != Fault::none) {
    const std::int64_t tokens =
        prompts.size() < kFaultyRequest ? 0 : std::ssize(prompts[kFaultyRequest - 1]);
    require_pages(fault_, tokens, node_.model.page_size);
  }
  greet(link_.control, link_.peer, node_.greeting());
  const int layers = node_.model.layers;
  bool sound = true;
  std::optional<Prefilled> stale;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const Owner id = static_cast<Owner>(i + 1);
    const Fault fault = id == kFaultyRequest ? fault_ : Fault::none;
    Prefilled p = prefill(id, prompts[i]);
    if (i == 0 || fault == Fault::stale_retry) {
      // The router changes its mind half-way: nothing wrong with that.
      offer(p);
      put_layers(p, 0, layers / 2, Fault::none);
      cancel(p);
    }
    if (fault == Fault::stale_retry) {
      stale = std::move(p);
      continue;
    }
    bool taken = send(p, fault);
    if (!taken) {
      say_("request " + std::to_string(id) + " is prefilled again");
      node_.release(p.request);
      p = prefill(id, prompts[i]);
      taken = send(p, Fault::none);
    }
    sound = sound && taken;
    if (stale) {
      put_layers(*stale, layers / 2, layers, Fault::none);
      put_records(*stale);
      node_.release(stale->request);
      stale.reset();
    }
    node_.release(p.request);
  }
  send_message(link_.control, link_.peer, {.kind = Kind::bye});
  node_.monitor.flush();
  for (const Violation& v : node_.poll()) {
    say_(serinus::canary::to_text(v, "prefill"));
    sound = false;
  }
  return sound;
}

Prefill::Prefilled Prefill::prefill(Owner id, const std::vector<std::uint32_t>& prompt) {
  Prefilled p;
  p.request = {id, prompt, {}, 0};
  if (!node_.reserve(p.request, static_cast<std::int64_t>(prompt.size()))) {
    throw std::length_error("the prefill pool has no room for a prompt of " +
                            std::to_string(prompt.size()) + " tokens");
  }
  Request* batch[] = {&p.request};
  node_.forward(batch);
  p.records.resize(prompt.size());
  p.source_digests.resize(prompt.size() * static_cast<std::size_t>(node_.source_digests()));
  node_.monitor.on_store(0, node_.slots_of(p.request.pages, 0, p.request.cached), p.records,
                         p.source_digests);
  return p;
}

bool Prefill::send(Prefilled& p, Fault fault) {
  offer(p);
  put_layers(p, 0, node_.model.layers, fault);
  // The page that was freed too early is not given back twice.
  if (fault == Fault::late_write) p.request.pages.erase(p.request.pages.begin() + kLatePage);
  if (fault != Fault::missing_records) put_records(p);
  return finish(p);
}

void Prefill::offer(Prefilled& p) {
  p.transfer = ++transfers_;
  send_message(link_.control, link_.peer,
               {.kind = Kind::offer,
                .request = p.request.id,
                .transfer = p.transfer,
                .count = static_cast<std::int32_t>(p.request.tokens.size())});
  link_.control.send(link_.peer, std::vector{segment_of(std::span(p.request.tokens))});
}

void Prefill::cancel(const Prefilled& p) {
  send_message(link_.control, link_.peer,
               {.kind = Kind::cancel, .request = p.request.id, .transfer = p.transfer});
}

void Prefill::put_layers(const Prefilled& p, int first, int last, Fault fault) {
  const auto pages = static_cast<std::int64_t>(p.request.pages.size());
  for (int layer = first; layer < last; ++layer) {
    if (fault == Fault::missing_layer && layer == kMissingLayer) continue;
    if (fault == Fault::late_write && layer == kLateLayer) {
      overwrite(p.request, p.request.pages[std::size_t{kLatePage}]);
    }
    for (int buffer = 0; buffer < node_.layout.num_buffers(); ++buffer) {
      const std::int64_t bytes = node_.layout.page_bytes[static_cast<std::size_t>(buffer)];
      const bool side = buffer == kSideBuffer;
      if (fault == Fault::missing_side_buffer && side) continue;
      if (fault == Fault::torn_page && layer == kTornLayer && buffer == kVBuffer) {
        put(p, layer, buffer, {0, kTornPage, 0, bytes}, buffer);
        put(p, layer, buffer, {kTornPage, 1, 0, bytes / 2 + 40}, buffer);
        put(p, layer, buffer, {kTornPage + 1, pages - kTornPage - 1, 0, bytes}, buffer);
        continue;
      }
      const bool halved = fault == Fault::half_of_the_heads && !side;
      const bool swapped = fault == Fault::swapped_k_and_v && !side;
      put(p, layer, buffer, {0, pages, 0, halved ? bytes / 2 : bytes},
          swapped ? kVBuffer - buffer : buffer);
    }
  }
}

void Prefill::put(const Prefilled& p, int layer, int buffer, PageRange range, int as_buffer) {
  send_message(link_.control, link_.peer,
               {.kind = Kind::put,
                .request = p.request.id,
                .transfer = p.transfer,
                .layer = layer,
                .buffer = as_buffer,
                .first = static_cast<std::int32_t>(range.first),
                .count = static_cast<std::int32_t>(range.count),
                .begin = range.begin,
                .end = range.end});
  std::vector<Segment> segments;
  for (std::int64_t i = range.first; i < range.first + range.count; ++i) {
    segments.push_back(node_.part_of(layer, buffer, p.request.pages[static_cast<std::size_t>(i)],
                                     range.begin, range.end));
  }
  link_.data.send(link_.peer, segments);
}

void Prefill::put_records(const Prefilled& p) {
  send_message(link_.control, link_.peer,
               {.kind = Kind::records,
                .request = p.request.id,
                .transfer = p.transfer,
                .count = static_cast<std::int32_t>(p.records.size())});
  const Segment records = segment_of(std::span(p.records));
  const Segment digests = segment_of(std::span(p.source_digests));
  const Segment staged = node_.staging(records.bytes + digests.bytes);
  node_.memory.write(staged.data, records.data, records.bytes);
  node_.memory.write(staged.data + records.bytes, digests.data, digests.bytes);
  link_.data.send(link_.peer, std::vector{staged});
}

bool Prefill::finish(const Prefilled& p) {
  const auto tokens = static_cast<std::int64_t>(p.request.tokens.size());
  send_message(link_.control, link_.peer,
               {.kind = Kind::done, .request = p.request.id, .transfer = p.transfer});
  const Message m = receive_message(link_.control, link_.peer);
  require_kind(link_.peer, m, Kind::verdict);
  require_in(link_.peer, "transfer", m.transfer, p.transfer, p.transfer);
  require_in(link_.peer, "request", m.request, p.request.id, p.request.id);
  // All, or none and why.
  if (m.count != 0) require_in(link_.peer, "count", m.count, tokens, tokens);
  const auto reasons = static_cast<std::int64_t>(m.value);
  require_in(link_.peer, "value", reasons, 0,
             m.count == 0 ? (1 << serinus::canary::kNumReasons) - 1 : 0);
  if (m.count == tokens) return true;
  say_("request " + std::to_string(p.request.id) + " was refused (" +
       (reasons == 0 ? "no room for " + std::to_string(tokens) + " tokens"
                     : serinus::canary::names_of(static_cast<Reason>(m.value))) +
       ")");
  return false;
}

// The page goes back while its bytes are still to be sent, and somebody else's prefill gets it.
void Prefill::overwrite(const Request& request, std::int64_t page) {
  node_.release_page(request, page);
  Prefilled other = prefill(
      Node::kRows - 1, std::vector<std::uint32_t>(static_cast<std::size_t>(node_.model.page_size)));
  node_.release(other.request);
}

// ---------------------------------------------------------------- decode

Decode::Decode(Node& node, Link link, Fault fault, Say say)
    : node_(node), link_(link), fault_(fault), say_(std::move(say)) {}

Decode::Outcome Decode::run(int steps) {
  greet(link_.control, link_.peer, node_.greeting());
  for (;;) {
    const Message m = receive_message(link_.control, link_.peer);
    switch (m.kind) {
      case Kind::offer:
        on_offer(m);
        break;
      case Kind::put:
        on_put(m);
        break;
      case Kind::records:
        on_records(m);
        break;
      case Kind::done:
        on_done(m);
        break;
      case Kind::cancel:
        on_cancel(m);
        break;
      case Kind::bye:
        decode(steps);
        finish();
        return outcome_;
      case Kind::hello:
      case Kind::verdict:
        refuse(link_.peer, "kind", static_cast<std::int64_t>(m.kind), "one for a decoding rank");
    }
  }
}

void Decode::on_offer(const Message& m) {
  require_in(link_.peer, "request", m.request, 1, Node::kRows - 1);
  require_in(link_.peer, "count", m.count, 1, Node::kCells);
  if (live_.contains(m.request) || arriving_.contains(m.request)) {
    refuse(link_.peer, "request", m.request, "a new one");
  }
  if (registrations_.contains(m.transfer)) {
    refuse(link_.peer, "transfer", m.transfer, "a new one");
  }
  Request r{m.request, std::vector<std::uint32_t>(static_cast<std::size_t>(m.count)), {}, 0};
  link_.control.receive(link_.peer, std::vector{segment_of(std::span(r.tokens))});
  for (const std::uint32_t token : r.tokens) {  // a negative one would count as not known
    require_in(link_.peer, "token", token, 0, std::numeric_limits<std::int32_t>::max());
  }
  // What there is no room for comes all the same, and is refused when it has come: this request is,
  // not the session.
  Registration to{m.request, {}, m.count, 0};
  if (!node_.reserve(r, m.count)) {
    registrations_.emplace(m.transfer, std::move(to));
    return;
  }
  to.pages = r.pages;
  if (fault_ == Fault::wrong_slots && m.request == kFaultyRequest) {
    require_pages(fault_, m.count, node_.model.page_size);
    fault_ = Fault::none;  // once
    std::swap(to.pages[kSwappedPage], to.pages[kSwappedPage + 1]);
  }
  registrations_.emplace(m.transfer, std::move(to));
  arriving_.emplace(m.request, std::move(r));
}

Decode::Registration& Decode::registered(const Message& m) {
  const auto found = registrations_.find(m.transfer);
  if (found == registrations_.end()) {
    refuse(link_.peer, "transfer", m.transfer, "one that is open");
  }
  require_in(link_.peer, "request", m.request, found->second.request, found->second.request);
  return found->second;
}

// Bytes land where the transfer was registered to, as a NIC would put them: nobody looks.
void Decode::on_put(const Message& m) {
  const Registration& to = registered(m);
  const std::int64_t page_size = node_.model.page_size;
  const std::int64_t pages = (to.tokens + page_size - 1) / page_size;
  require_in(link_.peer, "layer", m.layer, 0, node_.model.layers - 1);
  require_in(link_.peer, "buffer", m.buffer, 0, node_.layout.num_buffers() - 1);
  const std::int64_t bytes = node_.layout.page_bytes[static_cast<std::size_t>(m.buffer)];
  require_in(link_.peer, "first", m.first, 0, pages - 1);
  require_in(link_.peer, "count", m.count, 1, pages - m.first);
  require_in(link_.peer, "begin", m.begin, 0, bytes - 1);
  require_in(link_.peer, "end", m.end, m.begin + 1, bytes);
  std::vector<Segment> segments;
  for (std::int64_t i = m.first; i < m.first + std::int64_t{m.count}; ++i) {
    segments.push_back(to.has_room()
                           ? node_.part_of(m.layer, m.buffer, to.pages[static_cast<std::size_t>(i)],
                                           m.begin, m.end)
                           : node_.staging(m.end - m.begin));
  }
  link_.data.receive(link_.peer, segments);
}

void Decode::on_records(const Message& m) {
  Registration& to = registered(m);
  require_in(link_.peer, "first", m.first, to.recorded, to.recorded);
  require_in(link_.peer, "count", m.count, 1, to.tokens - to.recorded);
  const auto count = static_cast<std::size_t>(m.count);
  std::vector<serinus::canary::Record> records(count);
  std::vector<std::uint32_t> digests(count * static_cast<std::size_t>(node_.source_digests()));
  const Segment to_records = segment_of(std::span(records));
  const Segment to_digests = segment_of(std::span(digests));
  const Segment staged = node_.staging(to_records.bytes + to_digests.bytes);
  link_.data.receive(link_.peer, std::vector{staged});
  to.recorded += m.count;
  if (!to.has_room()) return;
  node_.memory.read(to_records.data, staged.data, to_records.bytes);
  node_.memory.read(to_digests.data, staged.data + to_records.bytes, to_digests.bytes);
  node_.monitor.on_load(0, records, node_.slots_of(to.pages, m.first, m.count), to.request,
                        digests);
}

void Decode::on_done(const Message& m) {
  const Registration to = registered(m);
  if (!to.has_room()) {
    registrations_.erase(m.transfer);
    say_("request " + std::to_string(to.request) + ": no room for its " +
         std::to_string(to.tokens) + " tokens");
    send_message(link_.control, link_.peer,
                 {.kind = Kind::verdict, .request = m.request, .transfer = m.transfer});
    decode(2);
    return;
  }
  const auto found = arriving_.find(to.request);
  if (found == arriving_.end()) refuse(link_.peer, "request", m.request, "one that is arriving");
  Request r = std::move(found->second);
  arriving_.erase(found);
  registrations_.erase(m.transfer);

  // Every token against its record and the prompt, before the first new token depends on it.
  r.cached = to.tokens;
  node_.verify(r);
  collect();
  Reason reasons = Reason::none;
  for (const std::int64_t slot : node_.slots_of(r.pages, 0, r.cached)) {
    if (const auto named = named_.find(slot); named != named_.end()) reasons |= named->second;
  }
  judge(r, to.recorded);
  Message verdict{.kind = Kind::verdict, .request = m.request, .transfer = m.transfer};
  verdict.value = static_cast<std::uint64_t>(reasons);
  if (any(reasons)) {
    say_("request " + std::to_string(r.id) + ": refused before its first token");
    node_.release(r);
  } else {
    say_("request " + std::to_string(r.id) + ": " + std::to_string(to.tokens) +
         " tokens received, each found sound before the first new token");
    verdict.count = static_cast<std::int32_t>(to.tokens);
    outcome_.verified += to.tokens;
    live_.emplace(r.id, std::move(r));
  }
  send_message(link_.control, link_.peer, verdict);
  decode(2);
}

void Decode::on_cancel(const Message& m) {
  const Owner request = registered(m).request;
  if (const auto found = arriving_.find(request); found != arriving_.end()) {
    collect();  // and forget: what was wrong with its slots is nobody's concern any more
    for (const std::int64_t slot :
         node_.slots_of(found->second.pages, 0, std::ssize(found->second.tokens))) {
      named_.erase(slot);
    }
    node_.release(found->second);
    arriving_.erase(found);
  }
  // The bug: the pages have gone back to the pool, and the transfer still writes them.
  if (fault_ != Fault::stale_retry) registrations_.erase(m.transfer);
}

// An engine would evict what a violation names (Mode::quarantine). Here decoding goes on, to show
// that the rolling budget comes around to every damaged slot.
void Decode::decode(int steps) {
  for (int step = 0; step < steps; ++step) {
    std::vector<Request*> batch;
    for (auto& [id, r] : live_) {
      if (!node_.reserve(r, static_cast<std::int64_t>(r.tokens.size()) + 1)) continue;
      r.tokens.push_back(sample(r.tokens));
      batch.push_back(&r);
    }
    node_.forward(batch);
    outcome_.decoded += static_cast<std::int64_t>(batch.size());
    collect();
  }
}

void Decode::collect() {
  for (Violation& v : node_.poll()) {
    named_[v.slot] |= v.reasons;
    outcome_.violations.push_back(std::move(v));
  }
}

void Decode::judge(const Request& request, std::int64_t recorded) {
  std::vector<std::int64_t> damaged = node_.damaged(request);
  // Without a record there is nothing to trust the bytes by.
  for (const std::int64_t slot :
       node_.slots_of(request.pages, recorded, request.cached - recorded)) {
    if (std::ranges::find(damaged, slot) == damaged.end()) damaged.push_back(slot);
  }
  for (const std::int64_t slot : node_.slots_of(request.pages, 0, request.cached)) {
    const bool is = std::ranges::find(damaged, slot) != damaged.end();
    const bool named = named_.erase(slot) > 0;
    outcome_.damaged += is ? 1 : 0;
    outcome_.missed += is && !named ? 1 : 0;
    outcome_.imagined += named && !is ? 1 : 0;
  }
}

void Decode::finish() {
  for (const auto& [id, r] : live_) judge(r, r.cached);
  // The rolling budget has been all over the pool: there is nothing that only a full pass finds.
  const std::size_t before = outcome_.violations.size();
  node_.monitor.flush();
  collect();
  outcome_.missed += static_cast<std::int64_t>(outcome_.violations.size() - before);
  outcome_.imagined += static_cast<std::int64_t>(named_.size());
}

bool as_expected(const Decode::Outcome& outcome, Fault fault) {
  if (outcome.missed != 0 || outcome.imagined != 0 || outcome.verified == 0) return false;
  if (fault == Fault::none) return outcome.violations.empty();
  if (outcome.damaged == 0) return false;
  const FaultEntry& want = entry_of(fault);
  const auto as_wanted = [&](const Violation& v) {
    const bool names = v.layer == want.layer && v.segment.starts_with(want.segment);
    return (v.reasons & want.reason) == want.reason && (want.layer < 0 || names);
  };
  // A write by a stranger explains whatever else is wrong where it went.
  const auto has_stranger = [](const Violation& v) {
    return any(v.reasons & Reason::foreign_write);
  };
  if (want.reason != Reason::foreign_write && std::ranges::any_of(outcome.violations, has_stranger))
    return false;
  // Damaged bytes have nothing else wrong with them; other faults also show in further reasons, and
  // at slots that they reach with their bytes alone.
  return want.reason == Reason::kv_bytes ? std::ranges::all_of(outcome.violations, as_wanted)
                                         : std::ranges::any_of(outcome.violations, as_wanted);
}

}  // namespace distributed
