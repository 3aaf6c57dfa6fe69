// Two ranks: one prefills, the other decodes; the KV travels, and its canary with it.
//
//   prefill_decode [--fault NAME] [--list]
//
// Exit code 0: the session went as it should, which with a fault means that it was caught as what
// it is, at every damaged slot and nowhere else. 1: it did not. 2: bad command line. 3: a rank
// failed.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "ranks.h"
#include "transfer.h"

using namespace distributed;

namespace {

constexpr std::chrono::seconds kTimeout{20};
constexpr int kPrefill = 0, kSteps = 24;
constexpr std::int64_t kPages = 64;

const std::vector<std::vector<std::uint32_t>> kPrompts = {prompt_of(100, 1), prompt_of(70, 2),
                                                          prompt_of(90, 3)};

int run_prefill(Node& node, Link link, Fault fault) {
  const auto say = [](const std::string& line) { std::printf("prefill: %s\n", line.c_str()); };
  return Prefill(node, link, fault, say).run(kPrompts) ? 0 : 1;
}

int run_decode(Node& node, Link link, Fault fault) {
  const auto say = [](const std::string& line) { std::printf("decode: %s\n", line.c_str()); };
  const Decode::Outcome o = Decode(node, link, fault, say).run(kSteps);
  const FaultEntry& want = entry_of(fault);
  const bool good = as_expected(o, fault);
  if (!o.violations.empty()) {
    std::printf("decode: the first of %zu reports:\n  %s\n", o.violations.size(),
                serinus::canary::to_text(o.violations.front(), "decode").c_str());
  }
  std::printf(
      "decode: %lld tokens verified on arrival, %lld decoded; %lld slots damaged, %lld "
      "missed, %lld imagined\n",
      static_cast<long long>(o.verified), static_cast<long long>(o.decoded),
      static_cast<long long>(o.damaged), static_cast<long long>(o.missed),
      static_cast<long long>(o.imagined));
  if (fault == Fault::none) {
    std::printf("no fault, %s\n", good ? "and none imagined" : "but not a clean session");
  } else {
    std::printf("%s (%s): %s %s\n", std::string(want.name).c_str(), std::string(want.what).c_str(),
                good ? "caught as" : "NOT caught as",
                serinus::canary::names_of(want.reason).c_str());
  }
  return good ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Fault fault = Fault::none;
  if (argc == 2 && std::strcmp(argv[1], "--list") == 0) {
    for (const FaultEntry& f : faults()) {
      std::printf("%-20s %s\n", std::string(f.name).c_str(), std::string(f.what).c_str());
    }
    return 0;
  }
  if (argc == 3 && std::strcmp(argv[1], "--fault") == 0) {
    const auto found = std::ranges::find(faults(), argv[2], &FaultEntry::name);
    if (found == faults().end()) {
      std::fprintf(stderr, "no such fault: %s (--list shows them)\n", argv[2]);
      return 2;
    }
    fault = found->fault;
  } else if (argc != 1) {
    std::fprintf(stderr, "usage: %s [--fault NAME | --list]\n", argv[0]);
    return 2;
  }
  return run_ranks(2, kTimeout, [fault](SocketTransport& control) {
    const int rank = control.rank();
    const std::unique_ptr<DataPlane> plane = open_data_plane(control, kTimeout);
    if (plane == nullptr) return kCannotRun;
    Node node(Model{}, kPages, static_cast<std::uint64_t>(rank), plane->memory(), plane->watch());
    const Link link{control, plane->transport(), 1 - rank};
    return rank == kPrefill ? run_prefill(node, link, fault) : run_decode(node, link, fault);
  });
}
