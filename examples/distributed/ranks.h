// Ranks as processes of this machine.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "memory.h"
#include "socket_transport.h"
#include "transport.h"

namespace distributed {

/// Where a rank's KV lies, and what moves it. Which one is chosen when a program is linked:
/// host_plane.cpp or gpu_plane.cpp.
struct DataPlane {
  virtual ~DataPlane() = default;
  virtual Memory& memory() = 0;
  virtual Transport& transport() = 0;
};
/// Called once in each rank's process; `control` connects the ranks already. Null, and said why,
/// where this machine has not what it takes (a GPU).
std::unique_ptr<DataPlane> open_data_plane(SocketTransport& control,
                                           std::chrono::milliseconds timeout);

/// Runs `body` in `size` processes that are connected with each other, the last rank in this one.
/// Returns the largest of their exit codes; a rank that was killed counts as kRankFailed. An
/// exception of `body` is printed, with the page that explains it, and is kRankFailed too.
int run_ranks(int size, std::chrono::milliseconds timeout,
              const std::function<int(SocketTransport& control)>& body);
inline constexpr int kRankFailed = 3;
inline constexpr int kCannotRun = 77;  ///< no data plane here: what CTest takes for "skipped"

}  // namespace distributed
