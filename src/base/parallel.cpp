#include "base/parallel.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

namespace serinus {

namespace {

constexpr int kMostThreads = 256;

// One call of parallel_for. It lives on the caller's stack; the pool's mutex guards the last three.
struct Job {
  std::int64_t n = 0;
  std::int64_t grain = 1;
  std::int64_t chunks = 0;
  const std::function<void(std::int64_t, std::int64_t)>* body = nullptr;
  std::atomic<std::int64_t> next{0};
  int places = 0;  // helpers that may still join
  int inside = 0;  // helpers at work
  std::exception_ptr failure;

  void work(std::mutex& mutex) noexcept {
    try {
      for (std::int64_t c = next.fetch_add(1, std::memory_order_relaxed); c < chunks;
           c = next.fetch_add(1, std::memory_order_relaxed)) {
        (*body)(c* grain, c + 1 == chunks ? n : (c + 1) * grain);
      }
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
      next.store(chunks, std::memory_order_relaxed);
    }
  }
};

class Pool {
 public:
  // Never destroyed: at the end of the process its threads sleep, and nothing must outlive them.
  static Pool& instance() {
    static Pool& pool = *new Pool;
    return pool;
  }

  void run(Job& job, int helpers) {
    int places = 0;
    {
      const std::lock_guard lock(mutex_);
      hire(helpers);
      places = job.places = std::min(helpers, threads_);
      if (places > 0) jobs_.push_back(&job);
    }
    for (int i = 0; i < places; ++i) work_there_is_.notify_one();
    job.work(mutex_);
    std::unique_lock lock(mutex_);
    if (job.places > 0) std::erase(jobs_, &job);
    job.places = 0;
    helper_left_.wait(lock, [&] { return job.inside == 0; });
  }

 private:
  void hire(int wanted) {
    try {
      for (; threads_ < wanted; ++threads_) std::thread([this] { serve(); }).detach();
    } catch (const std::system_error&) {
      // No more threads to be had: those that are here do the work, at worst the caller alone.
    }
  }

  void serve() {
    std::unique_lock lock(mutex_);
    while (true) {
      work_there_is_.wait(lock, [&] { return !jobs_.empty(); });
      Job& job = *jobs_.front();
      if (--job.places == 0) jobs_.pop_front();
      ++job.inside;
      lock.unlock();
      job.work(mutex_);
      lock.lock();
      // The job is gone as soon as its caller sees that nobody is inside.
      if (--job.inside == 0) helper_left_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable work_there_is_;
  std::condition_variable helper_left_;
  std::deque<Job*> jobs_;  // those that helpers may join
  int threads_ = 0;
};

}  // namespace

int resolve_threads(int threads) noexcept {
  if (threads > 0) return threads;
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

void parallel_for(int threads, std::int64_t n, std::int64_t grain,
                  const std::function<void(std::int64_t, std::int64_t)>& body) {
  if (n <= 0) return;
  grain = std::max<std::int64_t>(grain, 1);
  const std::int64_t chunks = (n - 1) / grain + 1;
  const std::int64_t workers = std::min({static_cast<std::int64_t>(resolve_threads(threads)),
                                         chunks, static_cast<std::int64_t>(kMostThreads)});
  if (workers == 1) {
    body(0, n);
    return;
  }
  Job job;
  job.n = n;
  job.grain = grain;
  job.chunks = chunks;
  job.body = &body;
  Pool::instance().run(job, static_cast<int>(workers - 1));
  if (job.failure) std::rethrow_exception(job.failure);
}

}  // namespace serinus
