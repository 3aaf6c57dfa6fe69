#include "ranks.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <vector>

#include <serinus/error.h>

namespace distributed {

namespace {

int run_rank(int rank, std::vector<std::vector<int>> sockets, std::chrono::milliseconds timeout,
             const std::function<int(SocketTransport&)>& body) {
  try {
    SocketTransport control(rank, keep_ends_of(rank, std::move(sockets)), timeout);
    return body(control);
  } catch (const serinus::Error& e) {
    std::fprintf(stderr, "rank %d: %s: %s (serinus explain %s)\n", rank, e.id().c_str(), e.what(),
                 e.id().c_str());
  } catch (const std::exception& e) {
    std::fprintf(stderr, "rank %d: %s\n", rank, e.what());
  }
  return kRankFailed;
}

}  // namespace

int run_ranks(int size, std::chrono::milliseconds timeout,
              const std::function<int(SocketTransport&)>& body) {
  for (int fd = 0; fd >= 0 && fd <= 2;) fd = open("/dev/null", O_RDWR);  // no socket is stdout
  std::vector<std::vector<int>> sockets = connect_ranks(size);
  std::vector<pid_t> others;
  for (int rank = 0; rank + 1 < size; ++rank) {
    std::fflush(nullptr);
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      const int code = run_rank(rank, std::move(sockets), timeout, body);
      std::fflush(nullptr);
      _exit(code);
    }
    if (pid > 0) others.push_back(pid);
  }
  int worst = static_cast<int>(others.size()) + 1 == size ? 0 : kRankFailed;
  worst = std::max(worst, run_rank(size - 1, std::move(sockets), timeout, body));
  std::fflush(nullptr);
  // Each ends by its own deadlines; one that was stopped does not.
  const auto deadline = std::chrono::steady_clock::now() + 2 * timeout;
  for (const pid_t pid : others) {
    int status = 0;
    while (waitpid(pid, &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > deadline) kill(pid, SIGKILL);
      usleep(2000);
    }
    worst = std::max(worst, WIFEXITED(status) ? WEXITSTATUS(status) : kRankFailed);
  }
  return worst;
}

}  // namespace distributed
