#include <mutex>
#include <utility>

#include <serinus/log.h>

namespace serinus {

namespace {
std::mutex g_mutex;
LogCallback g_callback;
}  // namespace

void set_log_callback(LogCallback callback) {
  const std::lock_guard lock(g_mutex);
  g_callback = std::move(callback);
}

void log(LogLevel level, std::string_view line) {
  const std::lock_guard lock(g_mutex);
  if (g_callback) g_callback(level, line);
}

}  // namespace serinus
