// The sockets: connections, limits, time. What is answered is the Site's affair.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "serve/site.h"

namespace serinus::serve {

struct ServerOptions {
  std::string host = "127.0.0.1";  ///< an IP address, or "localhost"
  int port = 7767;                 ///< 0 = any free one
  /// For an address that others can reach: at least 16 printable characters.
  std::string token;

  // A request, and its answer, have so long in all, however they trickle. Then the connection ends.
  std::chrono::milliseconds request_time{5000}, answer_time{10000};
  std::chrono::milliseconds idle_time{15000};  ///< between two requests of a connection
  std::size_t threads = 24;                    ///< connections that are served at once
  std::size_t waiting = 64;  ///< connections that wait for a thread; beyond them: 503
};

/// Whether this build has a server at all.
bool server_available() noexcept;

class Server {
 public:
  /// Listens, and answers from threads of its own until it is destroyed. `feed` may be null, and
  /// must outlive it. Throws ValueError (no token where one is needed) and RuntimeError (the
  /// address cannot be had, or this build has no server).
  Server(const ServerOptions& options, Feed* feed);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  int port() const noexcept;
  const std::string& url() const noexcept;  ///< "http://127.0.0.1:7767/"

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace serinus::serve
