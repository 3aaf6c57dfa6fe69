// Names of what injection does, with and without it.
#include <fmt/format.h>

#include <serinus/canary_inject.h>

namespace serinus::canary {

const char* name_of(Perturbation p) noexcept {
  switch (p) {
    case Perturbation::req_to_token:
      return "req_to_token";
    case Perturbation::kv_used:
      return "kv_used";
    case Perturbation::kv_unused_cache:
      return "kv_unused_cache";
    case Perturbation::kv_post_forward:
      return "kv_post_forward";
    case Perturbation::token_swap:
      return "token_swap";
    case Perturbation::v_byte:
      return "v_byte";
    case Perturbation::position:
      return "position";
    case Perturbation::record:
      return "record";
  }
  return "?";
}

std::string to_text(const Injected& i) {
  return fmt::format("injected {}: step={} pool={} slot={} row={} cell={} before={} after={}",
                     name_of(i.what), i.step, i.pool, i.slot, i.row, i.cell, i.before, i.after);
}

}  // namespace serinus::canary
