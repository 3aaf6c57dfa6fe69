// cpp-httplib listens, hands connections to threads and writes responses. What it does not bound is
// bounded here: how many connections there are, and how long and how large a request may be. So the
// head of a request is read here, whole and against the clock, and the library gets a head that was
// read strictly and made anew with the few headers that matter (no Range, no Expect, no body).
#include "serve/server.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <httplib.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/raise.h"

namespace serinus::serve {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::size_t kMaxRequests = 1000;  // of a connection
constexpr milliseconds kLookForEnd{100};    // how often a waiting thread asks whether to end

// Waits until the socket is ready, the time is over, or everything ends.
bool wait_for(int socket, short events, Clock::time_point until, const std::atomic<bool>& stop) {
  while (!stop) {
    const auto left = std::chrono::duration_cast<milliseconds>(until - Clock::now());
    if (left.count() < 0) return false;
    pollfd p{socket, events, 0};
    const int n = poll(&p, 1, static_cast<int>(std::min(left, kLookForEnd).count()));
    if (n > 0) return true;
    if (n < 0 && errno != EINTR) return false;
  }
  return false;
}

std::string_view reason_phrase(int status) {
  switch (status) {
    case 408:
      return "Request Timeout";
    case 413:
      return "Payload Too Large";
    case 414:
      return "URI Too Long";
    case 431:
      return "Request Header Fields Too Large";
    case 503:
      return "Service Unavailable";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Bad Request";
  }
}

// A refusal of what never came to the library.
std::string raw_response(int status, const std::string& why) {
  const Response r = Site::refuse(status, why);
  std::string out = fmt::format(
      "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n", status,
      reason_phrase(status), r.type, r.body.size());
  for (const auto& [name, value] : security_headers())
    out += fmt::format("{}: {}\r\n", name, value);
  return out + "\r\n" + r.body;
}

/// One connection. As a Stream it gives the library the head that was made anew, and writes against
/// the clock.
class Connection final : public httplib::Stream {
 public:
  enum class Read { head, end, late, too_large };

  Connection(int socket, const ServerOptions& options, const std::atomic<bool>& stop)
      : socket_(socket), options_(options), stop_(stop) {}
  ~Connection() override {
    // What was not read makes the kernel reset the connection, and the client lose the answer: read
    // a little on.
    ::shutdown(socket_, SHUT_WR);
    const auto until = Clock::now() + patience_;
    char buffer[4096];
    for (int i = 0; i < 32; ++i) {
      const ssize_t n = recv(socket_, buffer, sizeof buffer, MSG_DONTWAIT);
      const bool later = n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
      if (n == 0 || (n < 0 && !later)) break;
      if (later && !(patience_.count() > 0 && wait_for(socket_, POLLIN, until, stop_))) break;
    }
    ::close(socket_);
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  /// The next head, with its empty line. `first`: of this connection.
  Read read_head(std::string& head, bool first) {
    // Until its first byte a request costs an idle connection's time.
    auto until = Clock::now() + (first ? options_.request_time : options_.idle_time);
    bool begun = !input_.empty();
    if (begun) until = Clock::now() + options_.request_time;
    for (std::size_t searched = 0;;) {
      const std::size_t end = input_.find("\r\n\r\n", searched);
      if (end != std::string::npos) {
        if (end + 4 > kMaxHead) return Read::too_large;
        head = input_.substr(0, end + 4);
        input_.erase(0, end + 4);
        return Read::head;
      }
      if (input_.size() > kMaxHead) return Read::too_large;
      searched = input_.size() < 3 ? 0 : input_.size() - 3;
      if (!wait_for(socket_, POLLIN, until, stop_)) return begun ? Read::late : Read::end;
      char buffer[4096];
      const ssize_t n = recv(socket_, buffer, sizeof buffer, MSG_DONTWAIT);
      if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) continue;
      if (n <= 0) return Read::end;
      input_.append(buffer, static_cast<std::size_t>(n));
      if (!begun) until = Clock::now() + options_.request_time;
      begun = true;
    }
  }

  /// What the library will read, and from when on the answer's time runs.
  void give(std::string head) {
    given_ = std::move(head);
    at_ = 0;
    begin_answer();
  }
  void begin_answer() { answer_until_ = Clock::now() + options_.answer_time; }

  /// Said to those who are turned away: the thread that does it must go on at once.
  void send_at_once(std::string_view text) {
    patience_ = milliseconds(0);
    answer_until_ = Clock::now();
    write(text.data(), text.size());
  }
  void send_raw(std::string_view text) {
    begin_answer();
    write(text.data(), text.size());
  }

  bool is_readable() const override { return at_ < given_.size(); }
  bool is_writable() const override { return true; }
  ssize_t read(char* to, std::size_t size) override {
    const std::size_t n = std::min(size, given_.size() - at_);
    std::memcpy(to, given_.data() + at_, n);
    at_ += n;
    return static_cast<ssize_t>(n);
  }
  ssize_t write(const char* from, std::size_t size) override {
    for (std::size_t sent = 0; sent < size;) {
      const ssize_t n = send(socket_, from + sent, size - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n > 0) {
        sent += static_cast<std::size_t>(n);
      } else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
        if (!wait_for(socket_, POLLOUT, answer_until_, stop_)) return -1;
      } else {
        return -1;
      }
    }
    return static_cast<ssize_t>(size);
  }
  using Stream::write;
  void get_remote_ip_and_port(std::string& ip, int& port) const override {
    ip.clear();
    port = 0;
  }
  void get_local_ip_and_port(std::string& ip, int& port) const override {
    ip.clear();
    port = 0;
  }
  socket_t socket() const override { return socket_; }

 private:
  int socket_;
  const ServerOptions& options_;
  const std::atomic<bool>& stop_;
  milliseconds patience_{200};  // with a client at the end
  std::string input_;           // read and not yet given away
  std::string given_;
  std::size_t at_ = 0;
  Clock::time_point answer_until_;
};

// Newer versions of the library let enqueue() say no; ours never does, it answers 503 instead.
using Enqueued =
    decltype(std::declval<httplib::TaskQueue&>().enqueue(std::declval<std::function<void()>>()));

thread_local bool too_busy = false;  // the task that runs now is to be turned away

/// So many threads, so many tasks that wait; a task beyond them is run by the caller, told to be
/// short.
class Threads final : public httplib::TaskQueue {
 public:
  Threads(std::size_t threads, std::size_t waiting) : waiting_(waiting) {
    for (std::size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
  }

  Enqueued enqueue(std::function<void()> task) override {
    {
      const std::lock_guard lock(mutex_);
      if (tasks_.size() < waiting_) {
        tasks_.push_back(std::move(task));
        task = nullptr;
      }
    }
    if (task) {
      too_busy = true;
      task();
      too_busy = false;
    } else {
      ready_.notify_one();
    }
    return Enqueued(true);
  }

  void shutdown() override {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    ready_.notify_all();
    for (std::thread& t : threads_) t.join();
  }

 private:
  void work() {
    for (;;) {
      std::function<void()> task;
      {
        std::unique_lock lock(mutex_);
        ready_.wait(lock, [this] { return ending_ || !tasks_.empty(); });
        if (tasks_.empty()) return;
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      task();
    }
  }

  const std::size_t waiting_;
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<std::function<void()>> tasks_;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

// "localhost" by its number: names are not looked up, as where they lead can change.
std::string numeric(const std::string& host) {
  return host == "localhost" ? "127.0.0.1" : host;
}

std::string place(const ServerOptions& o) {
  const bool v6 = o.host.find(':') != std::string::npos;
  return v6 ? fmt::format("[{}]:{}", o.host, o.port) : fmt::format("{}:{}", o.host, o.port);
}

// Whether only this machine reaches the address. Throws where it is none.
bool is_loopback_address(const ServerOptions& o) {
  const std::string address = numeric(o.host);
  in_addr v4{};
  if (inet_pton(AF_INET, address.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
  in6_addr v6{};
  if (inet_pton(AF_INET6, address.c_str(), &v6) == 1) return IN6_IS_ADDR_LOOPBACK(&v6) != 0;
  raise(errors::Page::serve_cannot_listen,
        {{"name", place(o)}, {"got", "the host is neither an IP address nor localhost"}});
}

void require_token(const ServerOptions& o) {
  constexpr std::size_t kLeast = 16;
  const auto refuse = [&](const std::string& why) {
    raise(errors::Page::serve_token_missing, {{"got", place(o)}, {"why", why}});
  };
  if (o.token.empty()) refuse("others can reach that address");
  if (o.token.size() < kLeast) refuse(fmt::format("it has less than {} characters", kLeast));
  if (!std::ranges::all_of(o.token, [](char c) { return c > ' ' && c <= '~'; }))
    refuse("it holds something else than printable ASCII without spaces");
}

// On a loopback address the token, if there is one, is nobody's business.
SiteOptions site_options(const ServerOptions& o) {
  if (is_loopback_address(o)) return {true, ""};
  require_token(o);
  return {false, o.token};
}

}  // namespace

struct Server::Impl final : httplib::Server {
  Impl(const ServerOptions& o, Feed* feed) : options(o), site(site_options(o), feed) {}

  ~Impl() override {
    stopping = true;
    if (!listener.joinable()) return;
    stop();
    listener.join();
  }

  void start() {
    new_task_queue = [this] { return new Threads(options.threads, options.waiting); };
    // Not the library's SO_REUSEPORT: with it a port in use would be shared, not refused.
    set_socket_options([](socket_t s) {
      const int yes = 1;
      setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    });
    set_pre_routing_handler([this](const httplib::Request&, httplib::Response& out) {
      answer(out);
      return HandlerResponse::Handled;
    });
    set_tcp_nodelay(true);  // head and body are two writes
    // Said in a header of every answer.
    set_keep_alive_max_count(kMaxRequests);
    set_keep_alive_timeout(
        std::chrono::duration_cast<std::chrono::seconds>(options.idle_time).count());
    errno = 0;
    const std::string address = numeric(options.host);
    if (options.port == 0) {
      options.port = std::max(bind_to_any_port(address), 0);
    } else if (!bind_to_port(address, options.port)) {
      fail();
    }
    if (options.port == 0) fail();
    // The library lets five connections queue: of more at once the kernel drops some, whose clients
    // try again a second later.
    static_cast<void>(::listen(svr_sock_, SOMAXCONN));
    url = fmt::format("http://{}/", place(options));
    listener = std::thread([this] { listen_after_bind(); });
    while (!is_running()) std::this_thread::yield();  // stop() before it would be lost
  }

  [[noreturn]] void fail() const {
    const std::string why =
        errno != 0 ? std::generic_category().message(errno) : "the system refused it";
    raise(errors::Page::serve_cannot_listen, {{"name", place(options)}, {"got", why}});
  }

  void answer(httplib::Response& out) const {
    const Response r = site.answer(*now_read);
    out.status = r.status;
    out.set_content(r.body, r.type);
    out.set_header("Accept-Ranges", "none");
    for (const auto& [name, value] : security_headers()) out.set_header(name, value);
    for (const auto& [name, value] : r.headers) out.set_header(name, value);
  }

  bool process_and_close_socket(socket_t socket) override {
    Connection connection(socket, options, stopping);
    if (too_busy) {
      connection.send_at_once(raw_response(503, "too many connections"));
      return false;
    }
    for (std::size_t n = 0; n < kMaxRequests && !stopping; ++n) {
      std::string text;
      switch (connection.read_head(text, n == 0)) {
        case Connection::Read::end:
          return true;
        case Connection::Read::late:
          connection.send_raw(raw_response(408, "the request did not arrive in time"));
          return false;
        case Connection::Read::too_large:
          connection.send_raw(
              raw_response(431, fmt::format("a head of more than {} bytes", kMaxHead)));
          return false;
        case Connection::Read::head:
          break;
      }
      Head head;
      if (const auto refusal = parse_head(text, head)) {
        connection.send_raw(raw_response(refusal->status, refusal->why));
        return false;
      }
      const bool last = !head.keep_alive || head.has_body || n + 1 == kMaxRequests;
      // The library knows some methods only; the site says no to those that are not these two.
      connection.give(fmt::format("{} / HTTP/1.1\r\nHost: serinus\r\n{}\r\n",
                                  head.method == "HEAD" ? "HEAD" : "GET",
                                  last ? "Connection: close\r\n" : ""));
      now_read = &head;
      bool closed = false;
      const bool sent = process_request(connection, last, closed, nullptr);
      now_read = nullptr;
      if (!sent || closed || last) return sent;
    }
    return true;
  }

  ServerOptions options;
  Site site;
  std::string url;
  std::atomic<bool> stopping = false;
  std::thread listener;
  static thread_local const Head* now_read;  // by the connection of this thread
};

thread_local const Head* Server::Impl::now_read = nullptr;

bool server_available() noexcept {
  return true;
}

Server::Server(const ServerOptions& options, Feed* feed) {
  impl_ = std::make_unique<Impl>(options, feed);
  impl_->start();
}
Server::~Server() = default;

int Server::port() const noexcept {
  return impl_->options.port;
}

const std::string& Server::url() const noexcept {
  return impl_->url;
}

}  // namespace serinus::serve
