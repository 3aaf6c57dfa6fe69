// Ranks that run one model together must hold the same tokens of the same requests, each in pages
// of its own. One small all-gather a step says whether they do; only when they do not, a second one
// says who is wrong.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "node.h"
#include "transport.h"

namespace distributed {

/// A request that the ranks do not hold alike.
struct Disagreement {
  Owner request = 0;
  std::vector<int> ranks;  ///< those that are wrong; all of them where nobody can tell
  std::string why;         ///< in words, by rank
};

inline constexpr std::size_t kMostRequests = 64;

/// The step of one rank. `requests` are the same in the same order on all ranks. Every rank gets
/// the same answer, and its monitor the digests that differ.
///
/// A rank is wrong whose own records do not hold what the request's tokens say: it checks them when
/// the digests differ. Where those that are content with themselves still differ (they were given
/// different prompts), the ones are wrong that differ from more than half of them. Throws
/// peer-nonsense where a rank runs another number of requests.
std::vector<Disagreement> agree(Node& node, Transport& transport,
                                std::span<const Request* const> requests);

// Ways in which a rank comes to hold something else; for the example and its tests.
/// As a load that brings one page fewer leaves it: the page is there, its slots are EMPTY.
void lose_page(Node& node, Request& request, std::size_t page);
/// As a prefix hit on a wrong key leaves it: the row reads a page of `other`.
void take_page_of(Node& node, Request& request, const Request& other, std::size_t page);

}  // namespace distributed
