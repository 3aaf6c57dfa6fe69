// Which page of the error reference tells about which reason.
#include <bit>

#include <serinus/canary.h>

#include "base/raise.h"

namespace serinus::canary {

const ErrorEntry& page_of(Reason reason) {
  using errors::Page;
  switch (std::countr_zero(static_cast<std::uint32_t>(reason))) {
    case 0:
      return entry_of(Page::violation_token);
    case 1:
      return entry_of(Page::violation_position);
    case 2:
      return entry_of(Page::violation_chain);
    case 3:
      return entry_of(Page::violation_kv_bytes);
    case 4:
      return entry_of(Page::violation_stale);
    case 5:
      return entry_of(Page::violation_foreign_write);
    case 6:
      return entry_of(Page::violation_double_owner);
    case 7:
      return entry_of(Page::violation_out_of_range);
    case 8:
      return entry_of(Page::violation_null_slot_dirty);
    case 9:
      return entry_of(Page::violation_digest_differs_across_ranks);
    default:
      return entry_of(Page::canary_violation);
  }
}

}  // namespace serinus::canary
