#include "message.h"

#include <string>
#include <vector>

#include <serinus/error.h>

#include "mix.h"

namespace distributed {

namespace {

/// Of where each byte of a token lies in a page.
std::uint64_t hash_of_places(const serinus::KvLayout& layout) {
  std::uint64_t h = 0;
  const auto add = [&h](std::int64_t value) { h = mix(h, static_cast<std::uint64_t>(value)); };
  for (const std::int64_t bytes : layout.page_bytes) add(bytes);
  for (const serinus::KvSegment& s : layout.segments) {
    for (const std::int64_t value : {std::int64_t{s.buffer}, s.offset, s.token_stride}) add(value);
  }
  return h;
}

}  // namespace

void send_message(Transport& transport, int peer, const Message& message) {
  transport.send(peer, std::vector{segment_of(std::span(&message, 1))});
}

Message receive_message(Transport& transport, int peer) {
  Message m;
  transport.receive(peer, std::vector{segment_of(std::span(&m, 1))});
  require_in(peer, "magic", m.magic, Message{}.magic, Message{}.magic);
  require_in(peer, "kind", static_cast<std::int64_t>(m.kind), 0,
             static_cast<std::int64_t>(Kind::bye));
  return m;
}

void refuse(int peer, const char* field, std::int64_t got, const std::string& want) {
  serinus::raise("peer-nonsense", {{"name", field},
                                   {"peer", std::to_string(peer)},
                                   {"got", std::to_string(got)},
                                   {"want", want}});
}

void require_in(int peer, const char* field, std::int64_t got, std::int64_t least,
                std::int64_t most) {
  if (got >= least && got <= most) return;
  refuse(peer, field, got,
         least == most ? std::to_string(least)
                       : "in [" + std::to_string(least) + ", " + std::to_string(most) + "]");
}

void require_kind(int peer, const Message& message, Kind want) {
  require_in(peer, "kind", static_cast<std::int64_t>(message.kind), static_cast<std::int64_t>(want),
             static_cast<std::int64_t>(want));
}

Greeting greeting_of(const serinus::canary::Options& options,
                     const serinus::canary::PoolSpec& pool) {
  const Message hello{.kind = Kind::hello,
                      .buffer = pool.layout.num_buffers(),
                      .first = static_cast<std::int32_t>(options.source_digests),
                      .count = static_cast<std::int32_t>(pool.layout.page_size),
                      .value = hash_of_places(pool.layout)};
  return {hello, serinus::canary::transfer_terms(options, pool)};
}

void greet(Transport& transport, int peer, const Greeting& mine) {
  transport.send(peer, std::vector{segment_of(std::span(&mine.hello, 1)),
                                   segment_of(std::span(&mine.terms, 1))});
  const Message hello = receive_message(transport, peer);
  require_kind(peer, hello, Kind::hello);
  serinus::canary::TransferTerms terms;
  transport.receive(peer, std::vector{segment_of(std::span(&terms, 1))});

  std::vector<std::string> found = serinus::canary::differences(mine.terms, terms);
  const auto compare = [&found](const std::string& what, auto here, auto there) {
    if (here == there) return;
    found.push_back(what + ": " + std::to_string(here) + " here, " + std::to_string(there) +
                    " there");
  };
  compare("page size", mine.hello.count, hello.count);
  compare("source digests", mine.hello.first, hello.first);
  compare("buffers a layer", mine.hello.buffer, hello.buffer);
  compare("hash of where the bytes of a token lie", mine.hello.value, hello.value);
  if (found.empty()) return;
  std::string all;
  for (const std::string& f : found) all += (all.empty() ? "" : "; ") + f;
  serinus::raise("peer-layout-differs", {{"peer", std::to_string(peer)}, {"got", all}});
}

}  // namespace distributed
