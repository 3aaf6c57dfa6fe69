// A peer in a process of its own, and what goes wrong with peers.
#pragma once

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "bent_transport.h"
#include "ranks.h"
#include "socket_transport.h"
#include "transfer.h"

namespace distributed::testing {

using Milliseconds = std::chrono::milliseconds;
inline constexpr Milliseconds kPatient{20000};

/// Rank 0 of two, in a process that `body` runs in; this process is rank 1.
class PeerProcess {
 public:
  explicit PeerProcess(const std::function<void(SocketTransport&)>& body,
                       Milliseconds timeout = kPatient) {
    std::vector<std::vector<int>> sockets = connect_ranks(2);
    pid_ = fork();
    if (pid_ < 0) throw std::system_error(errno, std::generic_category(), "fork");
    const int rank = pid_ == 0 ? 0 : 1;
    transport_ = std::make_unique<SocketTransport>(rank, keep_ends_of(rank, std::move(sockets)),
                                                   pid_ == 0 ? kPatient : timeout);
    if (pid_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // a test that aborts leaves nobody behind
    int code = 0;
    try {
      body(*transport_);
    } catch (const std::exception&) {
      code = 1;  // the test hangs up on a peer that it is done with
    }
    transport_.reset();
    _exit(code);
  }
  ~PeerProcess() {
    if (pid_ <= 0) return;  // kill() of -1 would end every process there is
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  /// This process's end.
  SocketTransport& transport() { return *transport_; }
  /// The peer's exit code, once it has ended by itself; -1 where a signal ended it.
  int wait() {
    int status = 0;
    if (pid_ <= 0 || waitpid(std::exchange(pid_, 0), &status, 0) < 0) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_ = 0;  // 0: in the peer itself, or ended
  std::unique_ptr<SocketTransport> transport_;
};

/// One rank's engine over host memory.
struct Engine {
  explicit Engine(SocketTransport& control)
      : plane(open_data_plane(control, kPatient)),
        node(Model{}, 64, static_cast<std::uint64_t>(control.rank()), plane->memory()) {}
  std::unique_ptr<DataPlane> plane;
  Node node;
};

inline std::vector<std::vector<std::uint32_t>> prompts() {
  return {prompt_of(90, 1), prompt_of(75, 2), prompt_of(80, 3)};
}

inline void say_nothing(const std::string&) {}

}  // namespace distributed::testing
