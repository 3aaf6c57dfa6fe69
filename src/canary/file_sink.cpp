#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include <serinus/canary_sink.h>
#include <serinus/log.h>

#include "base/json.h"
#include "base/raise.h"

namespace serinus::canary {

namespace {

// The kernel looks for a fatal signal between the pages of one write.
constexpr std::int64_t kPage = 4096;
constexpr std::int64_t kUsualLine = 1536;

bool is_json(std::string_view text) {
  try {
    JsonCursor json(text);
    json.skip();
    json.finish();
  } catch (const JsonFault&) {
    return false;
  }
  return true;
}

/// The bytes after the last newline of a regular file; nothing where they are more than any line.
std::string unfinished_line(int fd, off_t size) {
  constexpr off_t kMost = 1 << 20;
  std::string tail(static_cast<std::size_t>(std::min(size, kMost)), '\0');
  if (pread(fd, tail.data(), tail.size(), size - std::ssize(tail)) != std::ssize(tail)) return {};
  const std::size_t newline = tail.rfind('\n');
  if (newline == std::string::npos) return size > kMost ? std::string() : tail;
  return tail.substr(newline + 1);
}

/// So that the next line is one of its own. What somebody wrote half is cut off, and said; what is
/// whole, and what is no JSON at all, gets the newline that it lacks.
void end_last_line(int fd, const std::string& path) {
  struct stat s = {};
  if (fstat(fd, &s) != 0 || !S_ISREG(s.st_mode) || s.st_size == 0) return;
  const std::string line = unfinished_line(fd, s.st_size);
  if (line.empty()) return;
  if (line.front() != '{' || is_json(line)) {
    if (::write(fd, "\n", 1) != 1) return;  // then the next line hangs on to it
    return;
  }
  if (ftruncate(fd, s.st_size - std::ssize(line)) != 0) return;
  log(LogLevel::warning, "kv-canary: " + path +
                             " ended in an unfinished line, which was cut off (" +
                             std::to_string(line.size()) + " bytes): " + printable(line, 200));
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
  end_last_line(fd, path);
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
