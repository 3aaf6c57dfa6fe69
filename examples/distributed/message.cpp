#include "message.h"

#include <string>
#include <vector>

#include <serinus/error.h>
#include <serinus/version.h>

#include "mix.h"

namespace distributed {

std::uint64_t fingerprint(const serinus::KvLayout& layout, int layers) {
  std::uint64_t h = mix(serinus::kRecordVersion, static_cast<std::uint64_t>(layers));
  const auto add = [&h](std::int64_t value) { h = mix(h, static_cast<std::uint64_t>(value)); };
  add(layout.page_size);
  for (const std::int64_t bytes : layout.page_bytes) add(bytes);
  for (const serinus::KvSegment& s : layout.segments) {
    for (const char c : s.name) add(c);
    for (const std::int64_t value :
         {static_cast<std::int64_t>(s.role), static_cast<std::int64_t>(s.buffer), s.offset,
          s.token_stride, s.bytes, static_cast<std::int64_t>(s.head)}) {
      add(value);
    }
  }
  return h;
}

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

Message greeting_of(const serinus::KvLayout& layout, int layers) {
  return {.kind = Kind::hello,
          .layer = layers,
          .buffer = layout.num_buffers(),
          .count = static_cast<std::int32_t>(layout.page_size),
          .end = layout.token_bytes(),
          .value = fingerprint(layout, layers)};
}

void greet(Transport& transport, int peer, const serinus::KvLayout& layout, int layers) {
  const Message mine = greeting_of(layout, layers);
  send_message(transport, peer, mine);
  const Message theirs = receive_message(transport, peer);
  require_kind(peer, theirs, Kind::hello);
  const auto same = [peer](const char* what, auto got, auto want) {
    if (got == want) return;
    serinus::raise("peer-layout-differs", {{"peer", std::to_string(peer)},
                                           {"name", what},
                                           {"got", std::to_string(got)},
                                           {"want", std::to_string(want)}});
  };
  same("num_layers", theirs.layer, mine.layer);
  same("num_buffers", theirs.buffer, mine.buffer);
  same("page_size", theirs.count, mine.count);
  same("token_bytes", theirs.end, mine.end);
  same("a fingerprint of the layout of", theirs.value, mine.value);
}

}  // namespace distributed
