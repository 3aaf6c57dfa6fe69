// What two ranks say to each other about KV. One struct of fixed size for everything, so that no
// length that a stranger made up is ever believed: what follows a message is computed from the
// receiver's own layout, after each number was found to be possible.
#pragma once

#include <bit>
#include <cstdint>
#include <string>

#include <serinus/canary_ranks.h>

#include "transport.h"

namespace distributed {

enum class Kind : std::uint32_t {
  hello,    ///< the first in each direction: what are my pages like; TransferTerms follow
  offer,    ///< `count` tokens of `request` come as `transfer`; their ids follow, 4 bytes each
  put,      ///< pages [first, first + count) of the request: bytes [begin, end) of each page of one
            ///< buffer of one layer follow
  records,  ///< the records of tokens [first, first + count) follow, then their source digests
  done,     ///< all was sent
  verdict,  ///< the answer to `done`: `count` tokens are sound; where none are, `value` has the
            ///< Reason bits found, 0 = there was no room for them
  cancel,   ///< the transfer is given up
  bye,      ///< nothing more will come
};

struct Message {
  std::uint32_t magic = 0x534e5831;  // "1XNS"
  Kind kind = Kind::hello;
  std::uint32_t request = 0;
  std::uint32_t transfer = 0;  ///< one attempt to send one request
  std::int32_t layer = 0, buffer = 0;
  std::int32_t first = 0, count = 0;
  std::int64_t begin = 0, end = 0;
  std::uint64_t value = 0;  ///< hello: see Greeting; verdict: Reason bits
  std::uint64_t unused = 0;

  friend bool operator==(const Message&, const Message&) = default;
};
static_assert(sizeof(Message) == 64 && std::endian::native == std::endian::little,
              "the bytes of a message are its wire format");

void send_message(Transport& transport, int peer, const Message& message);
/// Throws peer-nonsense for what is no message.
Message receive_message(Transport& transport, int peer);

/// Throws peer-nonsense: `field` of the peer's message is `got`, not `want`.
[[noreturn]] void refuse(int peer, const char* field, std::int64_t got, const std::string& want);
/// Refuses what does not lie in [least, most].
void require_in(int peer, const char* field, std::int64_t got, std::int64_t least,
                std::int64_t most);
void require_kind(int peer, const Message& message, Kind want);

/// What each side says first. Records can be understood where the terms agree; pages, which travel
/// as they lie, also need the same bytes at the same places: the message has a hash of that.
struct Greeting {
  Message hello;
  serinus::canary::TransferTerms terms;
};
Greeting greeting_of(const serinus::canary::Options& options,
                     const serinus::canary::PoolSpec& pool);
/// Exchanges greetings. Throws peer-layout-differs, which says what does.
void greet(Transport& transport, int peer, const Greeting& mine);

}  // namespace distributed
