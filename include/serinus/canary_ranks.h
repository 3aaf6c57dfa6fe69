// What several machines must agree on: the terms of a transfer of KV with its records, and what the
// ranks of one model have cached for a request. Plain structs of fixed size, for whatever transport
// an engine has: send the bytes, compare what arrives.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <serinus/canary.h>

namespace serinus::canary {

// ---------------------------------------------------------------- transfers

/// What the two sides of a transfer exchange before the first page. Little-endian, no padding.
struct TransferTerms {
  std::uint32_t version = 1;  ///< of this struct
  std::uint32_t record_version = 0;
  std::uint32_t format = 0, depth = 0;  ///< Format, Depth
  std::int64_t num_layers = 0;
  std::int64_t token_bytes = 0;   ///< over all layers: what the digest covers
  std::int64_t page_size = 0;     ///< for people: records do not depend on it
  std::uint64_t layout_hash = 0;  ///< of the segments' names, roles and lengths, in order
  char layout[64] = {};           ///< its name, terminated; for people
};
static_assert(sizeof(TransferTerms) == 112);

TransferTerms transfer_terms(const Options& options, const PoolSpec& pool);

/// In words, what keeps records of one side from being understood by the other: "depth: partial
/// here, all there". Empty: they agree. Page sizes, strides and names of layouts may differ.
/// `theirs` may hold anything.
std::vector<std::string> differences(const TransferTerms& mine, const TransferTerms& theirs);
/// Throws ValueError with the differences, if there are any.
void check_transfer(const TransferTerms& mine, const TransferTerms& theirs);

// ---------------------------------------------------------------- ranks

/// What one rank has cached for one request, without slot numbers: 32 bytes.
struct RequestDigest {
  std::uint32_t version = 3;  ///< of this struct
  Owner owner = 0;
  std::int64_t length = 0;  ///< tokens
  std::uint64_t chain = 0;  ///< over the stored chains of all tokens: a wrong one anywhere shows
  std::uint64_t kv = 0;     ///< over the stored digests of all tokens, each at its place
  friend bool operator==(const RequestDigest&, const RequestDigest&) = default;
};
static_assert(sizeof(RequestDigest) == 32);

/// Of the first `length` cells of `row` (in an SWA pool: of those that have a slot). Reads records
/// only, no KV bytes. A cell without a record makes `chain` and `kv` differ from those of a rank
/// that has one. Throws ValueError for a pool or table that is not there.
RequestDigest request_digest(Monitor& monitor, int pool, Owner owner, std::int64_t row,
                             std::int64_t length, const TensorView& req_to_token);

struct RankDifference {
  int rank = 0;
  std::int64_t request = 0;  ///< index within a rank's digests
  Owner owner = 0;           ///< as that rank says
  bool owner_differs = false, length = false, chain = false, kv = false;
  bool version = false;  ///< of RequestDigest: the rank runs another release
  friend bool operator==(const RankDifference&, const RankDifference&) = default;
};
/// "rank 2, request 7: length, chain".
std::string to_text(const RankDifference& d);

/// Compares what one all-gather of the digests gives: rank-major, as many a rank, requests in one
/// order. Each field is compared with the value that most ranks have (of equally many, the one of
/// the lowest rank). `kv` false: not compared, for ranks that hold different heads. Throws
/// ValueError where `gathered` does not divide by `num_ranks`.
std::vector<RankDifference> compare_ranks(std::span<const RequestDigest> gathered, int num_ranks,
                                          bool kv = true);
/// compare_ranks(), and a violation (digest_differs_across_ranks) for each request that differs.
std::vector<RankDifference> report_ranks(Monitor& monitor, std::span<const RequestDigest> gathered,
                                         int num_ranks, bool kv = true);

}  // namespace serinus::canary
