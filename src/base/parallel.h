// Splits work over threads. Results must not depend on how: give each index its own outputs.
#pragma once

#include <cstdint>
#include <functional>

namespace serinus {

/// 0 = all that the machine has; never less than 1.
int resolve_threads(int threads) noexcept;

/// Calls body(begin, end) for ranges that cover [0, n) once, on up to `threads` threads (the
/// caller's included, which always works). Ranges begin at multiples of `grain`; on one thread
/// there may be a single range. When a call throws, ranges that were not begun are left out, and
/// the first exception is rethrown. Returns when no thread is inside `body` any more.
///
/// The other threads are kept from call to call and sleep in between. Calls may be made from many
/// threads at once and from inside `body`: a call that finds no thread idle does the work alone.
void parallel_for(int threads, std::int64_t n, std::int64_t grain,
                  const std::function<void(std::int64_t begin, std::int64_t end)>& body);

}  // namespace serinus
