// Two ranks: one prefills, the other decodes; the KV travels, and its canary with it.
//
//   prefill_decode [--fault NAME | --peer lost | --peer silent | --list]
//
// Exit code 0: the session went as it should, which with a fault means that it was caught as what
// it is, at every damaged slot and nowhere else; with a prefilling rank that is gone or silent in
// the middle of the second request, that the other one said so and took the first one alone for
// verified. 1: it did not. 2: bad command line. 3: a rank failed.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include <serinus/error.h>

#include "bent_transport.h"
#include "ranks.h"
#include "transfer.h"

using namespace distributed;

namespace {

constexpr std::chrono::seconds kTimeout{20}, kImpatient{5};
constexpr int kPrefill = 0, kSteps = 24;
constexpr std::int64_t kPages = 64;

const std::vector<std::vector<std::uint32_t>> kPrompts = {prompt_of(100, 1), prompt_of(70, 2),
                                                          prompt_of(90, 3)};

enum class Peer { sound, lost, silent };

/// A prefilling rank that ends, or does nothing more, in the middle of the second request's bytes.
void end_in_the_middle(SocketTransport& control, Peer peer, int sends) {
  constexpr int kLast = 24;  // before it: 6 that were cancelled, 13 of the first request
  if (peer == Peer::sound || control.rank() != kPrefill || sends != kLast) return;
  while (peer == Peer::silent && !control.has_hung_up(1 - kPrefill)) usleep(10000);
  _exit(0);  // says goodbye to nobody
}

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

int run_decode_without_end(Node& node, Link link, Peer peer) {
  const auto say = [](const std::string& line) { std::printf("decode: %s\n", line.c_str()); };
  const std::string want = peer == Peer::lost ? "peer-lost" : "peer-silent";
  Decode decode(node, link, Fault::none, say);
  try {
    decode.run(kSteps);
  } catch (const serinus::RuntimeError& e) {
    const serinus::ErrorEntry* page = serinus::find_error(e.id());
    const Decode::Outcome& o = decode.outcome();
    std::printf("decode: %s: %s\ndecode: %lld tokens verified until then, %zu reports\n",
                e.id().c_str(), e.what(), static_cast<long long>(o.verified), o.violations.size());
    return page != nullptr && page->slug == want && o.violations.empty() &&
                   o.verified == std::ssize(kPrompts[0])
               ? 0
               : 1;
  }
  std::printf("decode: ran to its end\n");
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  Fault fault = Fault::none;
  Peer peer = Peer::sound;
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
  } else if (argc == 3 && std::strcmp(argv[1], "--peer") == 0 &&
             (std::strcmp(argv[2], "lost") == 0 || std::strcmp(argv[2], "silent") == 0)) {
    peer = std::strcmp(argv[2], "lost") == 0 ? Peer::lost : Peer::silent;
  } else if (argc != 1) {
    std::fprintf(stderr, "usage: %s [--fault NAME | --peer lost | --peer silent | --list]\n",
                 argv[0]);
    return 2;
  }
  const std::chrono::seconds timeout = peer == Peer::silent ? kImpatient : kTimeout;
  return run_ranks(2, timeout, [=](SocketTransport& control) {
    const int rank = control.rank();
    const std::unique_ptr<DataPlane> plane = open_data_plane(control, timeout);
    if (plane == nullptr) return kCannotRun;
    Node node(Model{}, kPages, static_cast<std::uint64_t>(rank), plane->memory());
    BentTransport data(plane->transport(), [&control, peer](int sends, auto) {
      end_in_the_middle(control, peer, sends);
    });
    const Link link{control, data, 1 - rank};
    if (rank == kPrefill) return run_prefill(node, link, fault);
    return peer == Peer::sound ? run_decode(node, link, fault)
                               : run_decode_without_end(node, link, peer);
  });
}
