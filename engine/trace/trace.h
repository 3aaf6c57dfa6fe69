// Serving traces: who asked when, how long prompt and answer were, and which prefixes were shared.
// Read from the public formats that people have; a request a line.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/line_reader.h"

namespace serinus::engine {

/// One request. Lengths count tokens.
struct TraceRequest {
  std::uint64_t line = 0;       ///< where it stands in its file, 1 = first line
  std::int64_t arrival_us = 0;  ///< since the trace's zero (Azure: since its first request)
  std::int64_t input_length = 0;
  std::int64_t output_length = 0;
  /// Block i holds tokens [i * block_size, (i + 1) * block_size); an id determines its whole
  /// prefix. Empty where the format knows nothing of prefixes.
  std::vector<std::int64_t> hash_ids;
  std::int64_t block_size = 0;  ///< 512 (Mooncake), 16 (Qwen-Bailian), 0 (Azure)
  // Qwen-Bailian only:
  std::int64_t chat_id = -1, parent_chat_id = -1, turn = 1;
  std::string type;
};

enum class TraceFormat : std::uint8_t { automatic, mooncake, qwen, azure };
const char* name_of(TraceFormat f) noexcept;

struct TraceOptions {
  TraceFormat format = TraceFormat::automatic;
  bool skip_bad = false;  ///< count malformed lines instead of stopping at the first
};

/// Reads a trace request by request, in bounded memory. Arrival times are not sorted and may go
/// back.
class TraceReader {
 public:
  static constexpr std::int64_t kMaxLength = std::int64_t{1} << 30;  ///< tokens, of either length

  /// Throws InputError: file unreadable, empty, or of no known format.
  explicit TraceReader(const std::string& path, TraceOptions options = {});
  /// A trace in memory; `name` stands for the file in messages.
  TraceReader(std::string name, std::string text, TraceOptions options = {});

  TraceReader(const TraceReader&) = delete;
  TraceReader& operator=(const TraceReader&) = delete;

  /// False at the end. Throws InputError naming file, line and field for a malformed line (unless
  /// skip_bad), and at the end of a trace without a single request.
  bool next(TraceRequest& request);

  TraceFormat format() const noexcept { return options_.format; }  ///< as given or detected
  std::uint64_t skipped() const noexcept { return skipped_; }      ///< malformed lines passed over
  /// Message of the first of them, empty if none.
  const std::string& first_skipped() const noexcept { return first_skipped_; }

 private:
  TraceReader(LineReader lines, TraceOptions options);
  bool next_line();
  [[noreturn]] void raise_empty() const;
  void skip(const std::string& field, const std::string& why, const std::string& got);

  LineReader lines_;
  TraceOptions options_;
  std::string_view line_;
  bool pending_ = false;  ///< line_ was read to detect the format, and is still to be parsed
  std::int64_t azure_zero_us_ = -1;
  std::uint64_t read_ = 0, skipped_ = 0;
  std::string first_skipped_;
};

/// The whole trace, in file order.
std::vector<TraceRequest> read_trace(const std::string& path, TraceOptions options = {});

}  // namespace serinus::engine
