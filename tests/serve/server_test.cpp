// The sockets: real connections to a free loopback port, friendly and hostile.
#include "serve/server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <serinus/error.h>

#include "rig.h"

namespace serinus::serve {
namespace {

using canary::testing::Rig;
using std::chrono::milliseconds;

ServerOptions any_port() {
  ServerOptions o;
  o.port = 0;
  return o;
}

/// A client that says what it is told to, byte by byte if need be.
class Socket {
 public:
  explicit Socket(int port, int receive_buffer = 0) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    if (receive_buffer > 0)
      setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<std::uint16_t>(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof to) == 0;
  }
  ~Socket() { close(fd_); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  bool connected() const { return connected_; }

  bool say(std::string_view text) {
    while (!text.empty()) {
      const ssize_t n = send(fd_, text.data(), text.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      text.remove_prefix(static_cast<std::size_t>(n));
    }
    return true;
  }
  bool has_something(milliseconds patience) {
    pollfd p{fd_, POLLIN, 0};
    return poll(&p, 1, static_cast<int>(patience.count())) == 1;
  }
  /// Everything until the other side ends the connection, or nothing came for `patience`.
  std::string all(milliseconds patience = milliseconds(20000)) {
    std::string out;
    char buffer[4096];
    pollfd p{fd_, POLLIN, 0};
    while (poll(&p, 1, static_cast<int>(patience.count())) == 1) {
      const ssize_t n = recv(fd_, buffer, sizeof buffer, 0);
      if (n <= 0) return out;
      out.append(buffer, static_cast<std::size_t>(n));
    }
    return out + "(and no end)";
  }
  /// One answer on a connection that goes on: its head and its body.
  std::string answer(bool has_body = true) {
    std::string out;
    char c = 0;
    while (!out.ends_with("\r\n\r\n") && recv(fd_, &c, 1, 0) == 1) out += c;
    const std::size_t at = out.find("Content-Length: ");
    if (!has_body || at == std::string::npos) return out;
    for (std::size_t left = std::stoul(out.substr(at + 16)); left > 0; --left) {
      if (recv(fd_, &c, 1, 0) != 1) break;
      out += c;
    }
    return out;
  }

 private:
  int fd_;
  bool connected_ = false;
};

std::string converse(int port, const std::string& request) {
  Socket s(port);
  EXPECT_TRUE(s.say(request));
  return s.all();
}

std::string get(const std::string& target, const std::string& headers = "") {
  return "GET " + target + " HTTP/1.1\r\nHost: localhost\r\n" + headers +
         "Connection: close\r\n\r\n";
}

int status_of(const std::string& answer) {
  return answer.starts_with("HTTP/1.1 ") ? std::stoi(answer.substr(9, 3)) : 0;
}

std::string body_of(const std::string& answer) {
  return answer.substr(std::min(answer.find("\r\n\r\n") + 4, answer.size()));
}

TEST(Server, AnswersEveryRoute) {
  Feed feed("test");
  const Server server(any_port(), &feed);
  EXPECT_EQ(server.url(), "http://127.0.0.1:" + std::to_string(server.port()) + "/");
  for (const char* target :
       {"/", "/healthz", "/metrics", "/api/stats", "/api/violations", "/api/pools", "/api/errors",
        "/api/errors/SRN2000", "/errors", "/errors/kv-must-be-contiguous", "/page/live.js"}) {
    const std::string answer = converse(server.port(), get(target));
    EXPECT_EQ(status_of(answer), 200) << target;
    EXPECT_FALSE(body_of(answer).empty()) << target;
    for (const auto& [name, value] : security_headers())
      EXPECT_NE(answer.find(name + ": " + value), std::string::npos) << target << ' ' << name;
    EXPECT_EQ(answer.find("Access-Control"), std::string::npos);
  }
  EXPECT_EQ(status_of(converse(server.port(), get("/nope"))), 404);
  EXPECT_EQ(status_of(converse(server.port(), get("/api/violations?limit=x"))), 400);
}

TEST(Server, AConnectionGoesOn) {
  const Server server(any_port(), nullptr);
  Socket s(server.port());
  const std::string ask = "GET /healthz HTTP/1.1\r\nHost: [::1]:1\r\n\r\n";
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(s.say(ask));
    EXPECT_EQ(status_of(s.answer()), 200);
  }
  ASSERT_TRUE(s.say(ask + ask + ask));  // before the answers came
  for (int i = 0; i < 3; ++i) EXPECT_EQ(status_of(s.answer()), 200);
  ASSERT_TRUE(s.say(get("/healthz")));
  EXPECT_EQ(status_of(s.all()), 200);  // and the end
}

TEST(Server, HeadHasTheHeadersAlone) {
  const Server server(any_port(), nullptr);
  const std::string whole = converse(server.port(), get("/page/style.css"));
  std::string request = get("/page/style.css");
  request.replace(0, 3, "HEAD");
  const std::string head = converse(server.port(), request);
  EXPECT_EQ(status_of(head), 200);
  EXPECT_EQ(head, whole.substr(0, whole.find("\r\n\r\n") + 4));
  EXPECT_NE(head.find("Content-Length: " + std::to_string(body_of(whole).size())),
            std::string::npos);
}

TEST(Server, HostileRequests) {
  const Server server(any_port(), nullptr);
  const int port = server.port();
  const std::string host = "Host: localhost\r\n";
  EXPECT_EQ(status_of(converse(
                port, "POST /healthz HTTP/1.1\r\n" + host + "Content-Length: 5\r\n\r\nhello")),
            405);
  EXPECT_EQ(status_of(converse(port, "BREW / HTTP/1.1\r\n" + host + "Connection: close\r\n\r\n")),
            405);
  EXPECT_EQ(status_of(converse(
                port, "POST / HTTP/1.1\r\n" + host + "Content-Length: 1000000000\r\n\r\n")),
            413);
  EXPECT_EQ(status_of(converse(port, get("/" + std::string(kMaxTarget, 'a')))), 414);
  EXPECT_EQ(status_of(converse(port, get("/", "X: " + std::string(kMaxHead, 'a') + "\r\n"))), 431);
  EXPECT_EQ(status_of(converse(port, "GET / HTTP/3.0\r\n" + host + "\r\n")), 505);
  EXPECT_EQ(status_of(converse(port, "\x16\x03\x01 a TLS hello, perhaps\r\n\r\n")), 400);
  EXPECT_EQ(status_of(converse(
                port, "GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n")),
            421);
  EXPECT_EQ(status_of(converse(port, get("/page/..%2f..%2fetc/passwd"))), 404);
  EXPECT_EQ(status_of(converse(port, get("/%"))), 400);
  // A body is never taken for the next request, nor is anything behind a chunked one.
  const std::string smuggled = "GET /page/style.css HTTP/1.1\r\n" + host + "\r\n";
  for (const std::string& framing : {"Content-Length: " + std::to_string(smuggled.size()),
                                     std::string("Transfer-Encoding: chunked")}) {
    const std::string answer =
        converse(port, "GET /healthz HTTP/1.1\r\n" + host + framing + "\r\n\r\n" + smuggled);
    EXPECT_EQ(status_of(answer), 200);
    EXPECT_EQ(answer.find("HTTP/1.1", 8), std::string::npos) << answer;
  }
  // Many ranges of one file would be many times the file.
  std::string ranges = "Range: bytes=0-";
  for (int i = 0; i < 1000; ++i) ranges += ",0-";
  const std::string answer = converse(port, get("/page/style.css", ranges + "\r\n"));
  EXPECT_EQ(status_of(answer), 200);
  EXPECT_LT(answer.size(), std::size_t{100000});
  // It is all still there.
  EXPECT_EQ(status_of(converse(port, get("/healthz"))), 200);
}

TEST(Server, ASlowRequestIsEndedInTime) {
  ServerOptions o = any_port();
  o.request_time = milliseconds(300);
  o.idle_time = milliseconds(200);
  const Server server(o, nullptr);
  // A byte now and then does not buy more time.
  Socket drip(server.port());
  std::atomic<bool> over = false;
  std::thread dripping([&] {
    while (!over && drip.say("X")) std::this_thread::sleep_for(milliseconds(20));
  });
  const std::string answer = drip.all();
  over = true;
  dripping.join();
  EXPECT_EQ(status_of(answer), 408) << answer;
  // Who says nothing is let go without a word.
  Socket silent(server.port());
  EXPECT_EQ(silent.all(), "");
  Socket idle(server.port());
  ASSERT_TRUE(idle.say("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"));
  EXPECT_EQ(status_of(idle.all()), 200);
}

TEST(Server, TooManyConnections) {
  ServerOptions o = any_port();
  o.threads = 2;
  o.waiting = 2;
  o.request_time = milliseconds(60000);
  std::vector<std::unique_ptr<Socket>> crowd;
  {
    const Server server(o, nullptr);
    for (int i = 0; i < 8; ++i) crowd.push_back(std::make_unique<Socket>(server.port()));
    // Two are served and two wait, say nothing, and so stay. Of the rest each is told at once.
    const auto is_told = [](const auto& s) { return s->has_something(milliseconds(0)); };
    const auto until = std::chrono::steady_clock::now() + milliseconds(20000);
    while (std::ranges::count_if(crowd, is_told) < 4 && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(milliseconds(5));
    int told = 0;
    for (const auto& s : crowd) {
      if (!is_told(s)) continue;
      ++told;
      EXPECT_EQ(status_of(s->all()), 503);
    }
    EXPECT_GE(told, 4);
    EXPECT_LT(told, 8);
  }  // and the server ends in spite of those that say nothing
}

// The kernel drops what finds the queue of new connections full, and a client tries again only
// after a second.
TEST(Server, ABurstOfConnectionsFindsRoomInTheQueue) {
  const Server server(any_port(), nullptr);
  std::uint32_t room = 0;
  for (int fd = 0; fd < 1024; ++fd) {
    int listens = 0;
    socklen_t size = sizeof listens;
    sockaddr_in at{};
    socklen_t at_size = sizeof at;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0) continue;
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&at), &at_size) != 0) continue;
    if (ntohs(at.sin_port) != server.port()) continue;
    tcp_info info{};
    socklen_t info_size = sizeof info;
    ASSERT_EQ(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &info_size), 0);
    room = info.tcpi_sacked;  // of a socket that listens: how many may wait
  }
  EXPECT_GE(room, 128u);
}

TEST(Server, AReaderThatDoesNotReadIsLetGo) {
  ServerOptions o = any_port();
  o.threads = 1;
  o.answer_time = milliseconds(300);
  Rig rig(32);
  Feed feed("test");
  for (int i = 0; i < 1000; ++i) {
    canary::Violation v;
    v.slot = i;
    feed.add(std::move(v), std::string(2000, 'x'), "");  // some MB in all
  }
  const Server server(o, &feed);
  Socket lazy(server.port(), 4096);
  ASSERT_TRUE(lazy.say(get("/api/violations?limit=1000")));
  // The only thread is busy with it, and the engine goes on.
  for (int i = 0; i < 1000; ++i) feed.look(rig.monitor);
  // Then the thread is free again.
  EXPECT_EQ(status_of(converse(server.port(), get("/healthz"))), 200);
}

TEST(Server, APortInUse) {
  const Server first(any_port(), nullptr);
  ServerOptions o;
  o.port = first.port();
  try {
    const Server second(o, nullptr);
    FAIL() << "both listen";
  } catch (const RuntimeError& e) {
    EXPECT_EQ(e.id(), "SRN6020");
    EXPECT_EQ(std::string(e.what()),
              "cannot listen on 127.0.0.1:" + std::to_string(o.port) + ": Address already in use");
  }
}

TEST(Server, AddressesThatAreNone) {
  for (const char* host : {"", "example.org", "127.0.0.1:80", "1.2.3", "::g", "127.0.0.1 "}) {
    ServerOptions o = any_port();
    o.host = host;
    EXPECT_THROW(Server(o, nullptr), RuntimeError) << host;
  }
}

TEST(Server, OthersNeedAToken) {
  ServerOptions o = any_port();
  o.host = "0.0.0.0";
  for (const char* bad : {"", "short", "0123456789 abcdef", "0123456789abcdef\n"}) {
    o.token = bad;
    try {
      const Server server(o, nullptr);
      FAIL() << "listens with the token '" << bad << "'";
    } catch (const ValueError& e) {
      EXPECT_EQ(e.id(), "SRN6021");
      EXPECT_EQ(std::string(e.what()).find("0123456789"), std::string::npos) << "shows the token";
    }
  }
  o.token = "0123456789abcdef";
  const Server server(o, nullptr);
  EXPECT_EQ(status_of(converse(server.port(), get("/healthz"))), 401);
  EXPECT_EQ(status_of(converse(server.port(),
                               get("/nope", "Authorization: Bearer 0123456789abcdeg\r\n"))),
            401);
  EXPECT_EQ(status_of(converse(server.port(),
                               get("/healthz", "Authorization: Bearer 0123456789abcdef\r\n"))),
            200);
}

TEST(Server, ManyAtOnce) {
  Rig rig;
  Feed feed("test");
  const Server server(any_port(), &feed);
  std::atomic<int> fine = 0, left = 8;
  std::vector<std::thread> clients;
  for (int t = 0; t < 8; ++t) {
    clients.emplace_back([&] {
      for (int i = 0; i < 20; ++i) {
        for (const char* target : {"/metrics", "/api/pools", "/api/pools/0/slots/4"})
          fine += static_cast<int>(status_of(converse(server.port(), get(target))) == 200);
      }
      --left;
    });
  }
  rig.alloc(1, {4, 5});
  rig.run(1, 0, {4, 5});
  while (left > 0) feed.look(rig.monitor);
  for (std::thread& t : clients) t.join();
  // The first ones may have come before there was a pool.
  EXPECT_GE(fine, 8 * 20 * 3 - 40);
}

}  // namespace
}  // namespace serinus::serve
