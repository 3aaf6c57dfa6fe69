// What a Monitor's moment on a GPU has beside the format's plan, verify and write: before them, and
// after them. Stream-ordered and capturable, as they are.
#pragma once

#include <cstdint>

#include <serinus/tensor.h>

#include "canary/cuda/serinus/params.h"
#include "canary/sglang/params.h"

namespace serinus::canary::sglang::cuda {

/// Counters of one moment.
struct MomentWords {
  std::int32_t found = 0;             ///< rows, stored or not
  std::int32_t assert_positions = 1;  ///< of write(): along a chain they go up by one
  std::int64_t verified = 0, written = 0;
  std::int64_t launches = 0, out_of_range = 0;
};

/// The inputs of the plan and of the write, as they may be trusted: lengths that a table can have,
/// slots of the pool itself.
struct PrepareParams {
  MomentWords* words = nullptr;
  std::int64_t num_requests = 0, num_tokens = 0;
  const std::int64_t* prefix_lens = nullptr;
  std::int64_t longest_prefix = 0;
  std::int64_t* prefixes = nullptr;
  const std::int64_t* valid_lens = nullptr;  ///< null: `all_valid` of every request
  std::int64_t all_valid = 0;
  std::int64_t* valid = nullptr;
  const std::int64_t* locations = nullptr;
  const std::int64_t* full_to_swa = nullptr;  ///< null: no translation
  std::int64_t full_to_swa_size = 0;
  std::int64_t* slots = nullptr;
};
void prepare(const PrepareParams& p, Device device, Stream stream);

/// A tree of drafts, for a write() whose chains are known. Of each token the slot before it, the
/// chain before it, and its own slot, negative where the one before does not exist. A request's
/// rows begin nowhere then: no seed is read again. What does not continue the position before is
/// reported here.
struct TreeParams {
  WriteParams write;  ///< with the plan's seeds
  MomentWords* words = nullptr;
  const std::int64_t* parents = nullptr;
  std::int64_t* seeds = nullptr;
  std::int64_t* chains = nullptr;
  std::int64_t* slots = nullptr;
  std::int64_t* no_seeds = nullptr;  ///< of each request
};
void compose_tree(const TreeParams& p, Device device, Stream stream);

/// Brings what a moment found to the Monitor's ring, with all that the format leaves out.
struct ReportParams {
  canary::cuda::RingParams ring;
  MomentWords* words = nullptr;
  const ViolationRow* rows = nullptr;
  const std::int64_t* entries = nullptr;  ///< of the rows
  std::int64_t capacity = 0;
  int pool = 0;
  Moment moment = Moment::head;
  const std::uint32_t* lives = nullptr;
  std::int64_t num_slots = 0;
  std::int64_t slot_bytes = 0;  ///< that were folded for an entry or a token
  PlanParams plan;              ///< of the entries; of a sweep no request
  const std::uint32_t* owners = nullptr;
  const std::int64_t* slots = nullptr;  ///< that were written
  const std::int64_t* tree = nullptr;   ///< the slot before each token; null: along the rows
};
void report(const ReportParams& p, Device device, Stream stream);

/// The lives of slots begin. A slot may be listed again: the latest counts.
void begin_lives(std::uint32_t* lives, std::int64_t num_slots, const std::int64_t* slots,
                 const std::uint32_t* begun, std::int64_t count, Device device, Stream stream);

/// Records of a list of slots, from the pool to the list or back. Slots that do not exist give
/// zeros, and take nothing.
struct CarryParams {
  Record* records = nullptr;
  std::int64_t num_slots = 0;
  const std::int64_t* slots = nullptr;
  std::int64_t count = 0;
  Record* list = nullptr;
  bool to_list = true;
  const std::int64_t* from = nullptr;  ///< back: only of slots that exist here; null: all
  bool without_bytes = false;          ///< back: the fingerprint is 0
};
void carry(const CarryParams& p, Device device, Stream stream);

}  // namespace serinus::canary::sglang::cuda
