// Faults on purpose, in a running engine: does its canary sing? Only in a library that was built
// with SERINUS_INJECT=ON, and only where InjectOptions::enabled is set; never by default. What each
// fault must produce: docs/triage.md. The lab of `serinus replay --faults` is another thing: it
// knows the engine, and judges what was found.
#pragma once

#include <array>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <serinus/canary.h>

namespace serinus::canary {

enum class Perturbation : std::uint8_t {
  req_to_token,     ///< a table cell that is read now points to another cell's slot
  kv_used,          ///< a byte of a slot that a request reads now
  kv_unused_cache,  ///< a byte of a written slot that no request of the batch reads
  kv_post_forward,  ///< a byte of a slot that this step wrote, after it was stamped
  token_swap,       ///< two requests get each other's input token
  v_byte,           ///< as kv_used, in a value segment (without one: in the last segment)
  position,         ///< one token is written under the next position
  record,           ///< a bit of the record of a slot that a request reads now
};
inline constexpr std::size_t kNumPerturbations = 8;
const char* name_of(Perturbation p) noexcept;

struct InjectOptions {
  bool enabled = false;
  std::uint64_t seed = 1;
  std::array<double, kNumPerturbations> probability{};  ///< a step, by Perturbation
  std::int64_t warmup_steps = 50;                       ///< none before
  int pool = 0;                                         ///< where bytes and records are hit
};

/// What was done, to be undone or found.
struct Injected {
  Perturbation what = Perturbation::req_to_token;
  std::uint64_t step = 0;
  int pool = 0;
  std::int64_t slot = -1;
  std::int64_t row = -1, cell = -1;
  std::int64_t before = 0, after = 0;  ///< the cell, byte, token, position or record bit
};
/// "injected kv_used: step=7 pool=0 slot=5 row=1 cell=2 before=56 after=199".
std::string to_text(const Injected& i);

/// Seeded: the same seed and the same calls give the same faults. Hits what the Monitor's
/// description of the pool points to. On a GPU it waits for the device, and what it does lies
/// between the steps before and after it; of a cuda::DeviceBatch it is given the same numbers as a
/// Batch, and what it changes in them goes to the device afterwards.
class Injector {
 public:
  /// Throws RuntimeError in a library without injection, or where `enabled` is not set.
  Injector(Monitor& monitor, InjectOptions options);

  /// Before begin_step(). `input_ids` and `positions` are what the batch's spans point to, to be
  /// written to; the table is written through batch.req_to_token.
  std::vector<Injected> before_step(const Batch& batch, std::span<std::int64_t> input_ids,
                                    std::span<std::int64_t> positions);
  /// After end_step().
  std::vector<Injected> after_step(const Batch& batch);

 private:
  struct Cell {
    std::int64_t row = 0, cell = 0, slot = 0;  ///< slot of the injected pool
    std::int32_t location = 0;                 ///< what the table says
  };
  bool draw(Perturbation p);
  std::size_t pick(std::size_t n);
  std::vector<Cell> active_cells(const Batch& batch) const;
  void flip(std::vector<Injected>& done, Perturbation p, const Cell& at);

  Monitor& monitor_;
  InjectOptions options_;
  std::mt19937_64 random_;
  std::uint64_t step_ = 0;
};

}  // namespace serinus::canary
