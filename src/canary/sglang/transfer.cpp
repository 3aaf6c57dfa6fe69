// Records travel with the KV pages that they describe: the canary's buffers are spliced into the
// lists that a pool hands to the transfer engine.
#include <string>

#include "base/raise.h"
#include "canary/sglang/entry.h"

namespace serinus::canary::sglang {

TransferBuffer transfer_buffer(const TensorView& canary_buf, std::int64_t page_size) {
  return {.address = reinterpret_cast<std::uintptr_t>(canary_buf.data),
          .bytes = canary_buf.shape[0] * kSlotBytes,
          .item_bytes = i64(u64(page_size) * u64(kSlotBytes))};
}

std::vector<TransferBuffer> splice_kv(std::span<const TransferBuffer> buffers,
                                      const TransferBuffer& k_head, const TransferBuffer& k_tail,
                                      const TransferBuffer& v_head, const TransferBuffer& v_tail) {
  if (buffers.size() % 2 != 0) {
    raise(errors::Page::canary_splice_odd,
          {{"argument", "buffers"}, {"got", std::to_string(buffers.size())}});
  }
  const std::size_t half = buffers.size() / 2;
  std::vector<TransferBuffer> out = splice_k(buffers.first(half), k_head, k_tail);
  const std::vector<TransferBuffer> v = splice_k(buffers.subspan(half), v_head, v_tail);
  out.insert(out.end(), v.begin(), v.end());
  return out;
}

std::vector<TransferBuffer> splice_k(std::span<const TransferBuffer> buffers,
                                     const TransferBuffer& k_head, const TransferBuffer& k_tail) {
  std::vector<TransferBuffer> out{k_head};
  out.insert(out.end(), buffers.begin(), buffers.end());
  out.push_back(k_tail);
  return out;
}

}  // namespace serinus::canary::sglang
