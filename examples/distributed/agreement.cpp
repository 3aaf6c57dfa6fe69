#include "agreement.h"

#include <algorithm>
#include <utility>

namespace distributed {

using serinus::canary::RankDifference;
using serinus::canary::Reason;
using serinus::canary::report_ranks;
using serinus::canary::RequestDigest;

namespace {

/// What rank `rank` says about item `i`, in the result of an all-gather of `items` a rank.
template <class T>
const T& said(const std::vector<T>& all, std::size_t items, std::size_t rank, std::size_t i) {
  return all[rank * items + i];
}

template <class T>
std::vector<T> gather(Transport& transport, const std::vector<T>& mine) {
  std::vector<T> all(mine.size() * static_cast<std::size_t>(transport.size()));
  transport.all_gather(segment_of(std::span(mine)), segment_of(std::span(all)));
  return all;
}

/// The digest that more than half of the ranks have; null if there is none.
const RequestDigest* majority(std::span<const RequestDigest> of_ranks) {
  for (const RequestDigest& d : of_ranks) {
    if (std::ranges::count(of_ranks, d) * 2 > std::ssize(of_ranks)) return &d;
  }
  return nullptr;
}

/// What is wrong with the request itself; that its digest differs, all know already.
Reason own_reasons(Node& node, const Request& request) {
  constexpr auto kKnown = static_cast<std::uint32_t>(Reason::digest_differs_across_ranks);
  return static_cast<Reason>(static_cast<std::uint32_t>(node.verify(request)) & ~kKnown);
}

void blame(Disagreement& d, int rank, const std::string& why) {
  d.ranks.push_back(rank);
  d.why += (d.why.empty() ? "rank " : "; rank ") + std::to_string(rank) + " " + why;
}

}  // namespace

std::vector<Disagreement> agree(Node& node, Transport& transport,
                                std::span<const Request* const> requests) {
  std::vector<RequestDigest> mine;
  for (const Request* r : requests) mine.push_back(node.digest(*r));
  const std::vector<RequestDigest> all = gather(transport, mine);
  const int ranks = transport.size();

  std::vector<Disagreement> found;
  std::vector<std::vector<RequestDigest>> digests;  // of each request in `found`, by rank
  std::vector<Reason> own;                          // what this rank finds wrong with itself
  for (const RankDifference& d : report_ranks(node.monitor, all, ranks, /*kv=*/false)) {
    const auto i = static_cast<std::size_t>(d.request);
    if (!found.empty() && found.back().request == requests[i]->id) continue;
    found.push_back({requests[i]->id, {}, {}});
    std::vector<RequestDigest>& of_ranks = digests.emplace_back();
    for (int rank = 0; rank < ranks; ++rank) {
      of_ranks.push_back(said(all, mine.size(), static_cast<std::size_t>(rank), i));
      of_ranks.back().kv = 0;  // ranks hold different heads
    }
    own.push_back(own_reasons(node, *requests[i]));
  }
  if (found.empty()) return found;

  // The ranks all saw the same digests, so they are all here, with the same list.
  const std::vector<Reason> reasons = gather(transport, own);
  for (std::size_t i = 0; i < found.size(); ++i) {
    Disagreement& d = found[i];
    for (int rank = 0; rank < ranks; ++rank) {
      const Reason r = said(reasons, found.size(), static_cast<std::size_t>(rank), i);
      if (!any(r)) continue;
      blame(d, rank, "finds in its own pool: " + names_of(r));
    }
    if (!d.ranks.empty()) continue;
    const RequestDigest* most = majority(digests[i]);
    for (int rank = 0; rank < ranks; ++rank) {
      if (most == nullptr) {
        blame(d, rank, "may be wrong");
      } else if (digests[i][static_cast<std::size_t>(rank)] != *most) {
        blame(d, rank, "holds other tokens than most");
      }
    }
  }
  return found;
}

void lose_page(Node& node, Request& request, std::size_t page) {
  const auto tokens = static_cast<std::int64_t>(request.tokens.size());
  const auto pages = static_cast<std::int64_t>(request.pages.size());
  if (!node.reserve(request, (pages + 1) * node.model.page_size)) return;
  std::swap(request.pages[page], request.pages.back());
  node.release_page(request, request.pages.back());
  request.pages.pop_back();
  node.reserve(request, tokens);  // the table again
}

void take_page_of(Node& node, Request& request, const Request& other, std::size_t page) {
  request.pages[page] = other.pages[page];
  node.reserve(request, static_cast<std::int64_t>(request.tokens.size()));
}

}  // namespace distributed
