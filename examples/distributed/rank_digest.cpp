// Ranks of one model compare what they hold, once a step, in one all-gather.
//
//   rank_digest [--ranks N] [--requests N] [--fault one_page_fewer | other_page]
//
// The fault is injected into the second request of rank 1 half-way. Exit code 0: nothing was named
// without a fault; with one, that rank and that request were, in the step in which it happened. 1:
// not so. 2: bad command line. 3: a rank failed.
// 77: this machine has not what it takes.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "agreement.h"
#include "ranks.h"

using namespace distributed;

namespace {

constexpr std::chrono::seconds kTimeout{20};
constexpr int kFaultyRank = 1, kSteps = 16, kFaultyStep = 8;
constexpr std::int64_t kPages = 1 + 64 * 8;  // of 16 tokens: the null slot's, and all requests'
constexpr std::size_t kFaultyRequest = 1, kFaultyPage = 2;

enum class RankFault { none, one_page_fewer, other_page };
struct Settings {
  int ranks = 4, requests = 6;
  RankFault fault = RankFault::none;
};

void inject(Node& node, std::vector<Request>& requests, RankFault fault) {
  Request& r = requests[kFaultyRequest];
  if (fault == RankFault::one_page_fewer) lose_page(node, r, kFaultyPage);
  if (fault == RankFault::other_page) take_page_of(node, r, requests[0], kFaultyPage);
}

int run_rank(SocketTransport& control, const Settings& settings) {
  const int rank = control.rank();
  const bool speaks = rank + 1 == control.size();
  const std::unique_ptr<DataPlane> plane = open_data_plane(control, kTimeout);
  if (plane == nullptr) return kCannotRun;
  Node node(Model{}, kPages, static_cast<std::uint64_t>(rank), plane->memory());

  std::vector<Request> requests;
  std::vector<Request*> batch;
  for (int i = 0; i < settings.requests; ++i) {
    const auto n = static_cast<std::uint32_t>(i + 1);
    requests.push_back({n, prompt_of(48 + n, n), {}, 0});
  }
  for (Request& r : requests) {
    node.reserve(r, static_cast<std::int64_t>(r.tokens.size()) + kSteps);
    batch.push_back(&r);
  }
  node.forward(batch);

  for (int step = 0; step < kSteps; ++step) {
    if (rank == kFaultyRank && step == kFaultyStep) inject(node, requests, settings.fault);
    const std::vector<Disagreement> found =
        agree(node, plane->transport(), {batch.data(), batch.size()});
    for (const Disagreement& d : found) {
      if (speaks) std::printf("step %d: request %u: %s\n", step, d.request, d.why.c_str());
    }
    if (!found.empty()) {
      return settings.fault != RankFault::none && step == kFaultyStep && found.size() == 1 &&
                     found[0].request == kFaultyRequest + 1 &&
                     found[0].ranks == std::vector{kFaultyRank}
                 ? 0
                 : 1;
    }
    for (Request* r : batch) {
      r->tokens.push_back(sample(r->tokens));
    }
    node.forward(batch);
  }
  if (speaks) {
    std::printf("%d ranks, %d requests, %d steps: no two ever disagreed\n", settings.ranks,
                settings.requests, kSteps);
  }
  return settings.fault == RankFault::none && node.poll().empty() ? 0 : 1;
}

/// False where the command line makes no sense.
bool parse(int argc, char** argv, Settings& settings) {
  const auto number = [](const char* text, int least, int most, int& into) {
    const char* end = text + std::strlen(text);
    const auto [stop, error] = std::from_chars(text, end, into);
    return error == std::errc{} && stop == end && into >= least && into <= most;
  };
  for (int i = 1; i < argc; i += 2) {
    const std::string option = argv[i], value = i + 1 < argc ? argv[i + 1] : "";
    if (option == "--ranks" && number(value.c_str(), 2, 16, settings.ranks)) continue;
    if (option == "--requests" && number(value.c_str(), 2, 64, settings.requests)) continue;
    if (option != "--fault") return false;
    if (value == "one_page_fewer") {
      settings.fault = RankFault::one_page_fewer;
    } else if (value == "other_page") {
      settings.fault = RankFault::other_page;
    } else {
      return false;
    }
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  if (!parse(argc, argv, settings)) {
    std::fprintf(stderr,
                 "usage: %s [--ranks 2..16] [--requests 2..64] [--fault one_page_fewer | "
                 "other_page]\n",
                 argv[0]);
    return 2;
  }
  return run_ranks(settings.ranks, kTimeout,
                   [&](SocketTransport& control) { return run_rank(control, settings); });
}
