// Where the library's words go. It prints nothing by itself.
#pragma once

#include <functional>
#include <string_view>

namespace serinus {

enum class LogLevel { debug, info, warning, error };

using LogCallback = std::function<void(LogLevel, std::string_view line)>;

/// Sets the callback for the process; an empty one (the default) drops everything. Thread-safe. The
/// callback may be called from any thread, one call at a time, and must not call set_log_callback.
void set_log_callback(LogCallback callback);

/// Hands a line to the callback.
void log(LogLevel level, std::string_view line);

}  // namespace serinus
