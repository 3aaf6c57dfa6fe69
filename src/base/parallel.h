// Splits work over threads. Results must not depend on how: give each index its own outputs.
#pragma once

#include <cstdint>
#include <functional>

namespace serinus {

/// 0 = all that the machine has; never less than 1.
int resolve_threads(int threads) noexcept;

/// Calls body(begin, end) for ranges that cover [0, n) once, on up to `threads` threads (the
/// caller's included). Ranges are multiples of `grain` but for the last. The first exception is
/// rethrown.
void parallel_for(int threads, std::int64_t n, std::int64_t grain,
                  const std::function<void(std::int64_t begin, std::int64_t end)>& body);

}  // namespace serinus
