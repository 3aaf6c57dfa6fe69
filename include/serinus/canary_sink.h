// Violations on disk, from a thread of their own: an engine's step never waits for a file.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace serinus::canary {

/// Appends lines to a file. The queue is bounded: what finds it full, or cannot be written, is
/// dropped and counted. A process that is killed leaves whole lines: each is one write within one
/// page of memory, for which lines that end near a page's end are padded with spaces (a line of
/// more than 1536 bytes, which takes a pool's name of hundreds of characters, is not protected like
/// this). When the file is opened, a last line without a newline gets one; a JSON line that
/// somebody left unfinished is cut off, and the log callback is told what it was.
/// Thread-safe.
class FileSink {
 public:
  /// Throws InputError where the file cannot be opened for appending (it is made if it does not
  /// exist). A FIFO that nobody reads counts as a slow file. `capacity` lines wait at most.
  explicit FileSink(const std::string& path, std::size_t capacity = 4096);
  /// Writes what is queued, for a second at most.
  ~FileSink();
  FileSink(const FileSink&) = delete;
  FileSink& operator=(const FileSink&) = delete;

  /// Queues a line, without its newline. Never waits for the file.
  void write(std::string line);
  /// Waits until the queue is empty; false where that took too long.
  bool flush(std::chrono::milliseconds timeout);

  struct Counts {
    std::uint64_t written = 0;
    std::uint64_t dropped = 0;  ///< found the queue full
    std::uint64_t failed = 0;   ///< could not be written: disk full, file gone
  };
  Counts counts() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace serinus::canary
