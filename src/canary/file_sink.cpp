#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include <serinus/canary_sink.h>

#include "base/raise.h"

namespace serinus::canary {

namespace {

// The kernel looks for a fatal signal between the pages of one write.
constexpr std::int64_t kPage = 4096;
constexpr std::int64_t kUsualLine = 1536;

/// Cuts off what follows the last newline of a regular file.
void end_last_line(int fd) {
  struct stat s = {};
  if (fstat(fd, &s) != 0 || !S_ISREG(s.st_mode) || s.st_size == 0) return;
  std::string block;
  off_t end = s.st_size;
  while (end > 0) {
    const off_t begin = std::max<off_t>(0, end - kPage);
    block.resize(static_cast<std::size_t>(end - begin));
    if (pread(fd, block.data(), block.size(), begin) != static_cast<ssize_t>(block.size())) return;
    const std::size_t newline = block.rfind('\n');
    if (newline != std::string::npos) {
      end = begin + static_cast<off_t>(newline) + 1;
      break;
    }
    end = begin;
  }
  if (end != s.st_size && ftruncate(fd, end) != 0) return;  // then it stays as it is
}

}  // namespace

struct FileSink::State {
  explicit State(int file, std::size_t room) : fd(file), capacity(room) {}
  ~State() { close(fd); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      wake.wait(lock, [&] { return stop || !queue.empty(); });
      if (queue.empty()) break;
      std::string line = std::move(queue.front());
      queue.pop_front();
      busy = true;
      lock.unlock();
      const bool fine = put(std::move(line));
      lock.lock();
      busy = false;
      ++(fine ? counts.written : counts.failed);
      if (queue.empty()) idle.notify_all();
    }
    idle.notify_all();
  }

  bool given_up() {
    const std::lock_guard lock(mutex);
    return abandoned;
  }

  bool put(std::string line) {
    const off_t at = lseek(fd, 0, SEEK_END);  // fails for what is no file: then nothing is padded
    if (at >= 0) {
      const std::int64_t end = at + std::ssize(line) + 1;
      const std::int64_t left = (kPage - end % kPage) % kPage;
      if (left < kUsualLine) line.append(static_cast<std::size_t>(left), ' ');
    }
    line += '\n';
    for (std::size_t done = 0; done < line.size();) {
      const ssize_t n = ::write(fd, line.data() + done, line.size() - done);
      if (n > 0) {
        done += static_cast<std::size_t>(n);
      } else if (n < 0 && errno == EAGAIN) {
        if (given_up()) return false;
        pollfd ready{fd, POLLOUT, 0};
        poll(&ready, 1, 50);
      } else if (n == 0 || errno != EINTR) {
        return false;
      }
    }
    return true;
  }

  const int fd;
  const std::size_t capacity;
  std::mutex mutex;
  std::condition_variable wake, idle;
  std::deque<std::string> queue;
  bool stop = false, busy = false, abandoned = false;
  Counts counts;
};

FileSink::FileSink(const std::string& path, std::size_t capacity) {
  // Reading, too: to end the last line, and so that a FIFO opens without a reader.
  const bool whole = path.find('\0') == std::string::npos;  // else the system ends it there
  const int fd =
      whole ? open(path.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0644) : -1;
  if (!whole) errno = EINVAL;
  if (fd < 0) {
    const std::string why = std::generic_category().message(errno);
    raise(errors::Page::sink_not_opened, {{"got", path}, {"why", why}});
  }
  end_last_line(fd);
  state_ = std::make_shared<State>(fd, std::max<std::size_t>(capacity, 1));
  // It keeps its state alive: a thread that a dead file system holds can be left behind.
  std::thread([state = state_] { state->run(); }).detach();
}

FileSink::~FileSink() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->wake.notify_all();
  flush(std::chrono::seconds(1));
  const std::lock_guard lock(state_->mutex);
  state_->abandoned = true;
  state_->queue.clear();
}

void FileSink::write(std::string line) {
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->queue.size() >= state_->capacity) {
      ++state_->counts.dropped;
      return;
    }
    state_->queue.push_back(std::move(line));
  }
  state_->wake.notify_one();
}

bool FileSink::flush(std::chrono::milliseconds timeout) {
  std::unique_lock lock(state_->mutex);
  return state_->idle.wait_for(lock, timeout,
                               [&] { return state_->queue.empty() && !state_->busy; });
}

FileSink::Counts FileSink::counts() const {
  const std::lock_guard lock(state_->mutex);
  return state_->counts;
}

}  // namespace serinus::canary
