// What is answered to which request. No socket here, and no state but the feed's: every answer is a
// function of the request and of what the engine has published. docs/serve.md lists the routes.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "serve/feed.h"
#include "serve/http.h"

namespace serinus::serve {

struct Response {
  int status = 200;
  std::string type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;  ///< beside the security headers
};

/// Sent with every response.
std::vector<std::pair<std::string, std::string>> security_headers();

struct SiteOptions {
  /// Only this machine can connect: no token, but the Host header must name it, so that no web page
  /// reaches it through a DNS name of its own.
  bool loopback = true;
  /// Required as `Authorization: Bearer TOKEN` where it is not empty.
  std::string token;
};

class Site {
 public:
  /// `feed` may be null: then there is the error reference alone.
  Site(SiteOptions options, Feed* feed) : options_(std::move(options)), feed_(feed) {}

  /// Never throws for what a request says. The body is the same for HEAD; who sends it leaves it
  /// out.
  Response answer(const Head& request) const;
  /// The answer to what could not even be read.
  static Response refuse(int status, const std::string& why);

 private:
  struct Asked;
  std::optional<Response> keep_out(const Head& request) const;
  Response api(const Asked& asked) const;
  Response health() const;
  Response stats() const;
  Response violations(const Target& target) const;
  Response pools(std::string_view rest) const;
  Response slot(int pool, std::int64_t slot) const;

  SiteOptions options_;
  Feed* feed_;
};

}  // namespace serinus::serve
