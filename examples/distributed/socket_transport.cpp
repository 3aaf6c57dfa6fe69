#include "socket_transport.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include <serinus/error.h>

namespace distributed {

SocketTransport::SocketTransport(int rank, std::vector<int> sockets,
                                 std::chrono::milliseconds timeout)
    : rank_(rank), sockets_(std::move(sockets)), timeout_(timeout) {
  for (const int socket : sockets_) {
    if (socket >= 0) fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) | O_NONBLOCK);
  }
}

SocketTransport::~SocketTransport() {
  for (const int socket : sockets_) {
    if (socket >= 0) close(socket);
  }
}

void SocketTransport::send(int peer, std::span<const Segment> segments) {
  exchange({{peer, true, {segments.begin(), segments.end()}}}, "sending to it");
}

void SocketTransport::receive(int peer, std::span<const Segment> segments) {
  exchange({{peer, false, {segments.begin(), segments.end()}}}, "receiving from it");
}

void SocketTransport::all_gather(Segment mine, Segment all) {
  std::vector<Flow> flows;
  for (int peer = 0; peer < size(); ++peer) {
    std::uint8_t* place = all.data + peer * mine.bytes;
    if (peer == rank_) {
      std::copy_n(mine.data, mine.bytes, place);
      continue;
    }
    flows.push_back({peer, true, {mine}});
    flows.push_back({peer, false, {{place, mine.bytes}}});
  }
  exchange(std::move(flows), "gathering from all ranks");
}

bool SocketTransport::has_hung_up(int peer) const {
  pollfd end{sockets_[static_cast<std::size_t>(peer)], POLLRDHUP, 0};
  return ::poll(&end, 1, 0) > 0 && (end.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

void SocketTransport::exchange(std::vector<Flow> flows, const char* doing) {
  const auto deadline = std::chrono::steady_clock::now() + timeout_;
  if (!broken_.empty()) lost(flows.empty() ? rank_ : flows.front().peer, broken_, doing);
  const auto done = [](const Flow& flow) { return flow.next == flow.segments.size(); };
  for (;;) {
    for (Flow& flow : flows) advance(flow, doing);
    std::erase_if(flows, done);
    if (flows.empty()) return;

    std::vector<pollfd> waiting;
    for (const Flow& flow : flows) {
      waiting.push_back({sockets_[static_cast<std::size_t>(flow.peer)],
                         static_cast<short>(flow.out ? POLLOUT : POLLIN), 0});
    }
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) {
      broken_ = "an earlier call ran into its deadline";
      serinus::raise("peer-silent", {{"peer", std::to_string(flows.front().peer)},
                                     {"got", std::to_string(timeout_.count())},
                                     {"doing", doing}});
    }
    if (::poll(waiting.data(), waiting.size(), static_cast<int>(left.count())) < 0 &&
        errno != EINTR) {
      throw std::system_error(errno, std::generic_category(), "poll");
    }
  }
}

void SocketTransport::advance(Flow& flow, const char* doing) {
  const int socket = sockets_[static_cast<std::size_t>(flow.peer)];
  while (flow.next < flow.segments.size()) {
    Segment& s = flow.segments[flow.next];
    if (s.bytes == 0) {
      ++flow.next;
      continue;
    }
    const auto bytes = static_cast<std::size_t>(s.bytes);
    // MSG_NOSIGNAL: a peer that is gone is an error here, not a signal.
    const ssize_t moved =
        flow.out ? ::send(socket, s.data, bytes, MSG_NOSIGNAL) : ::recv(socket, s.data, bytes, 0);
    if (moved > 0) {
      s.data += moved;
      s.bytes -= moved;
    } else if (moved == 0) {
      lost(flow.peer, "the connection was closed", doing);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return;
    } else if (errno != EINTR) {
      lost(flow.peer, std::generic_category().message(errno), doing);
    }
  }
}

void SocketTransport::lost(int peer, std::string why, const char* doing) {
  if (broken_.empty()) broken_ = "an earlier call failed, " + why;
  serinus::raise("peer-lost",
                 {{"peer", std::to_string(peer)}, {"got", std::move(why)}, {"doing", doing}});
}

std::vector<std::vector<int>> connect_ranks(int size) {
  const auto n = static_cast<std::size_t>(size);
  std::vector<std::vector<int>> sockets(n, std::vector<int>(n, -1));
  for (std::size_t a = 0; a < n; ++a) {
    for (std::size_t b = a + 1; b < n; ++b) {
      int pair[2];
      if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
        throw std::system_error(errno, std::generic_category(), "socketpair");
      }
      sockets[a][b] = pair[0];
      sockets[b][a] = pair[1];
    }
  }
  return sockets;
}

std::vector<int> keep_ends_of(int rank, std::vector<std::vector<int>> sockets) {
  for (std::size_t other = 0; other < sockets.size(); ++other) {
    if (static_cast<int>(other) == rank) continue;
    for (const int socket : sockets[other]) {
      if (socket >= 0) close(socket);
    }
  }
  return std::move(sockets[static_cast<std::size_t>(rank)]);
}

}  // namespace distributed
