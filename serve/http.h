// What a request says, read strictly: its head, its target, its numbers. Everything in it is
// hostile. No socket here: server.cpp has those.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace serinus::serve {

/// Limits on what a client sends. Beyond them it is refused, not read.
inline constexpr std::size_t kMaxHead = 16 << 10;    ///< request line and headers, bytes: 431
inline constexpr std::size_t kMaxTarget = 2 << 10;   ///< of those, the target: 414
inline constexpr std::size_t kMaxHeaders = 64;       ///< header lines: 431
inline constexpr std::uint64_t kMaxBody = 64 << 10;  ///< announced bytes of a body: 413

/// The head of a request, as far as anything here asks. Names of headers are matched in any case.
struct Head {
  std::string method, target;
  std::optional<std::string> host;
  std::string authorization, accept;
  bool keep_alive = true;
  bool has_body = false;  ///< bytes follow that nobody will read: the connection ends with it
};

struct Refusal {
  int status = 400;
  std::string why;
};

/// Reads a head, up to and with its empty line. Anything that two readers could take differently
/// (a bare line feed, space before a colon, two lengths) is refused.
std::optional<Refusal> parse_head(std::string_view text, Head& head);

/// "/api/pools/0?limit=5" apart, and decoded.
struct Target {
  std::string path;
  std::vector<std::pair<std::string, std::string>> query;

  /// The value of a key: nothing where it is absent; the first of several.
  const std::string* find(std::string_view key) const noexcept;
};

/// Nothing where `text` is no origin-form target: it begins with a slash, escapes are whole and
/// none of them is a control character.
std::optional<Target> parse_target(std::string_view text);

/// Decimal digits alone, at most `most`.
std::optional<std::uint64_t> parse_number(std::string_view text, std::uint64_t most) noexcept;

/// Takes as long for every `given` of one length: what it says about `secret` is its length.
bool same_secret(std::string_view given, std::string_view secret) noexcept;

/// "127.0.0.1", "[::1]", "localhost", with or without a port: a name that DNS cannot point
/// elsewhere.
bool is_loopback_host(std::string_view host) noexcept;

}  // namespace serinus::serve
