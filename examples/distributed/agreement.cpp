#include "agreement.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>

namespace distributed {

using serinus::canary::RankDifference;
using serinus::canary::Reason;
using serinus::canary::report_ranks;
using serinus::canary::RequestDigest;

namespace {

/// What one rank puts into an all-gather: always as many bytes, however many requests it runs.
template <class T>
struct Said {
  std::uint64_t count = 0;
  std::array<T, kMostRequests> items{};
};

template <class T>
std::vector<Said<T>> gather(Transport& transport, const std::vector<T>& mine) {
  Said<T> said;
  said.count = mine.size();
  std::ranges::copy(mine, said.items.begin());
  std::vector<Said<T>> all(static_cast<std::size_t>(transport.size()));
  transport.all_gather(segment_of(std::span(&said, 1)), segment_of(std::span(all)));
  const auto count = static_cast<std::int64_t>(mine.size());
  for (int rank = 0; rank < transport.size(); ++rank) {
    const auto theirs = static_cast<std::int64_t>(all[static_cast<std::size_t>(rank)].count);
    require_in(rank, "requests", theirs, count, count);
  }
  return all;
}

/// What is wrong with the tokens that this rank holds of the request. Damaged bytes are no reason
/// why its digest would differ.
Reason own_reasons(Node& node, const Request& request) {
  return node.verify(request) & (Reason::token | Reason::position | Reason::chain | Reason::stale |
                                 Reason::foreign_write | Reason::out_of_range);
}

/// The digest that more than half of `ranks` have; null if there is none.
const RequestDigest* majority(const std::vector<RequestDigest>& of_ranks,
                              const std::vector<int>& ranks) {
  for (const int rank : ranks) {
    const RequestDigest& d = of_ranks[static_cast<std::size_t>(rank)];
    const auto alike = std::ranges::count_if(
        ranks, [&](int other) { return of_ranks[static_cast<std::size_t>(other)] == d; });
    if (alike * 2 > std::ssize(ranks)) return &d;
  }
  return nullptr;
}

void blame(Disagreement& d, int rank, const std::string& why) {
  d.ranks.push_back(rank);
  d.why += (d.why.empty() ? "rank " : "; rank ") + std::to_string(rank) + " " + why;
}

}  // namespace

std::vector<Disagreement> agree(Node& node, Transport& transport,
                                std::span<const Request* const> requests) {
  if (requests.size() > kMostRequests) {
    throw std::length_error("an agreement is over " + std::to_string(kMostRequests) +
                            " requests at most");
  }
  std::vector<RequestDigest> mine;
  for (const Request* r : requests) mine.push_back(node.digest(*r));
  const std::vector<Said<RequestDigest>> all = gather(transport, mine);
  std::vector<RequestDigest> flat;
  for (const Said<RequestDigest>& rank : all) {
    flat.insert(flat.end(), rank.items.begin(), rank.items.begin() + std::ssize(mine));
  }

  std::vector<Disagreement> found;
  std::vector<std::size_t> index;  // of each request in `found`
  std::vector<Reason> own;         // what this rank finds wrong with itself
  for (const RankDifference& d : report_ranks(node.monitor, flat, transport.size(), /*kv=*/false)) {
    const auto i = static_cast<std::size_t>(d.request);
    if (!index.empty() && index.back() == i) continue;
    index.push_back(i);
    found.push_back({requests[i]->id, {}, {}});
    own.push_back(own_reasons(node, *requests[i]));
  }
  if (found.empty()) return found;

  // The ranks all saw the same digests, so they are all here, with the same list.
  const std::vector<Said<Reason>> reasons = gather(transport, own);
  for (int rank = 0; rank < transport.size(); ++rank) {
    for (const Reason said :
         std::span(reasons[static_cast<std::size_t>(rank)].items).first(own.size())) {
      require_in(rank, "reasons", static_cast<std::int64_t>(said), 0,
                 (1 << serinus::canary::kNumReasons) - 1);
    }
  }
  for (std::size_t i = 0; i < found.size(); ++i) {
    Disagreement& d = found[i];
    std::vector<RequestDigest> of_ranks;
    std::vector<int> content;  // with what they hold
    for (int rank = 0; rank < transport.size(); ++rank) {
      const auto r = static_cast<std::size_t>(rank);
      of_ranks.push_back(all[r].items[index[i]]);
      of_ranks.back().kv = 0;  // ranks hold different heads
      if (any(reasons[r].items[i])) {
        blame(d, rank, "finds in its own pool: " + names_of(reasons[r].items[i]));
      } else {
        content.push_back(rank);
      }
    }
    const auto differs = [&](int rank) {
      return of_ranks[static_cast<std::size_t>(rank)] !=
             of_ranks[static_cast<std::size_t>(content.front())];
    };
    if (std::ranges::none_of(content, differs)) continue;
    const RequestDigest* most = majority(of_ranks, content);
    for (const int rank : content) {
      if (most == nullptr) {
        blame(d, rank, "may be wrong");
      } else if (of_ranks[static_cast<std::size_t>(rank)] != *most) {
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
