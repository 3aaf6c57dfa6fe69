// What one rank has: a paged pool, its page allocator and table, a model whose KV bytes are known
// beforehand, and a canary over all of it.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include <serinus/canary.h>
#include <serinus/canary_ranks.h>

#include "memory.h"
#include "message.h"
#include "transport.h"

namespace distributed {

using serinus::canary::Owner;

/// K and V head by head, and a side buffer, as an indexer's keys or a quantised cache's scales are.
struct Model {
  int layers = 4;
  std::int64_t page_size = 16, heads = 4, head_size = 32, side_bytes = 20;
};
serinus::KvLayout layout_of(const Model& model);

/// A request and where its KV lies: token i is in slot i % page_size of pages[i / page_size].
struct Request {
  Owner id = 0;
  std::vector<std::uint32_t> tokens;
  std::vector<std::int64_t> pages;
  std::int64_t cached = 0;  ///< tokens whose KV is in the pool
};

/// A budget so small that a pass over the pool takes several steps, as in a pool of real size. The
/// digests of sources name layer and head, and travel with the records.
serinus::canary::Options watch_options();

/// The token after `tokens`: no language model, but as particular about its context.
std::uint32_t sample(std::span<const std::uint32_t> tokens);
/// A text of `length` tokens that begins with `first`.
std::vector<std::uint32_t> prompt_of(std::size_t length, std::uint32_t first);

class Node {
 public:
  static constexpr std::int64_t kRows = 65, kCells = 1024;  ///< request r has row r of the table

  /// `seed` orders the free pages, so that no two ranks have the same table.
  Node(const Model& model, std::int64_t pages, std::uint64_t seed, Memory& memory);

  /// Gives `request` the pages for `tokens` tokens; false, and nothing changes, without so many.
  bool reserve(Request& request, std::int64_t tokens);
  /// Gives all its pages back.
  void release(Request& request);
  /// Gives one page back while the request goes on knowing it: a bug, for those who inject it.
  void release_page(const Request& request, std::int64_t page);

  /// One forward: the KV of the tokens [cached, tokens.size()) of each request.
  void forward(std::span<Request* const> requests);
  /// Compares all cells of a request with their records, now. Returns all that was ever found wrong
  /// with the request.
  serinus::canary::Reason verify(const Request& request);
  /// All that was found since the last call; waits for the checks under way. Remembered for
  /// verify().
  std::vector<serinus::canary::Violation> poll();
  /// What the pool holds of the request.
  serinus::canary::RequestDigest digest(const Request& request);
  /// What this rank tells a peer about its KV and records.
  Greeting greeting() const;
  /// Words of source digests a slot.
  std::int64_t source_digests() const;

  std::vector<std::int64_t> slots_of(std::span<const std::int64_t> pages, std::int64_t first,
                                     std::int64_t count) const;
  /// Memory where the KV lies, for what travels beside it or is not wanted: `bytes` of it, at most
  /// a page's or kCells records' with their source digests, until the next call.
  Segment staging(std::int64_t bytes);
  /// Bytes [begin, end) of a page of one buffer of one layer.
  Segment part_of(int layer, int buffer, std::int64_t page, std::int64_t begin,
                  std::int64_t end) const;
  /// The slots of `request` whose bytes are not what the model writes there: the truth that the
  /// canary is held against, found without it.
  std::vector<std::int64_t> damaged(const Request& request) const;

  const Model model;
  const serinus::KvLayout layout;
  Memory& memory;
  serinus::canary::Monitor monitor;

 private:
  struct Tables;  // the arrays of a batch
  void take();
  serinus::TensorView make_table(std::int32_t value);
  void write_expected(const Request& request);
  void write_row(const serinus::TensorView& table, Owner row, std::span<const std::int32_t> cells);
  Tables tables_of(std::span<const Request* const> requests) const;
  std::uint8_t* place_of(const serinus::canary::Source& source, std::int64_t slot) const;
  /// What the model writes for a cell.
  static void fill(const Request& request, std::int64_t cell, const serinus::canary::Source& source,
                   std::uint8_t* bytes);

  Segment staging_;
  std::vector<serinus::KvBuffer> buffers_;  // layer-major
  std::vector<serinus::canary::Source> sources_;
  std::vector<std::int64_t> free_pages_;                // the last one goes first
  serinus::TensorView req_to_token_, expected_tokens_;  // [kRows, kCells] int32, beside the KV
  std::map<Owner, serinus::canary::Reason> found_;      // by request
  std::vector<serinus::canary::Violation> found_since_poll_;
};

}  // namespace distributed
