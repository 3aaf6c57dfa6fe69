// The smallest engine with a canary: one request, one pool, two steps, and a byte that flips
// between them. Builds against an installed Serinus (examples/CMakeLists.txt).
#include <cstdint>
#include <cstdio>
#include <vector>

#include <serinus/canary.h>
#include <serinus/kv_layout.h>

using namespace serinus;

int main() {
  // The pool that the engine has anyway: 2 pages of 64 tokens, described by its layout's name.
  const KvLayout layout = kv_layout("fp8_656");
  std::vector<std::uint8_t> kv(static_cast<std::size_t>(2 * layout.page_bytes[0]));
  std::vector<std::int32_t> req_to_token(2 * 8);  // row 0 is padding

  canary::Monitor monitor({.verify = canary::VerifyPolicy::all, .source_digests = true});
  canary::PoolSpec pool;
  pool.name = "kv";
  pool.layout = layout;
  pool.buffers = {{kv.data(), static_cast<std::int64_t>(kv.size()), 0}};
  pool.num_slots = 2 * layout.page_size;
  monitor.add_pool(pool);

  // The allocator gives request 7 four slots, in no order.
  const std::vector<std::int64_t> slots = {70, 3, 41, 99};
  for (std::size_t i = 0; i < slots.size(); ++i)
    req_to_token[8 + i] = static_cast<std::int32_t>(slots[i]);
  monitor.on_alloc(0, slots, 7);

  // Each forward is bracketed; the batch points to the tables that attention reads.
  const auto step = [&](std::int64_t prefix, std::vector<std::int64_t> tokens) {
    std::vector<std::int64_t> positions, locations;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      positions.push_back(prefix + static_cast<std::int64_t>(i));
      locations.push_back(slots[static_cast<std::size_t>(positions.back())]);
    }
    const std::vector<std::int64_t> rows = {1}, prefixes = {prefix},
                                    extends = {static_cast<std::int64_t>(tokens.size())};
    const std::vector<canary::Owner> owners = {7};
    canary::Batch batch;
    batch.rows = rows;
    batch.prefix_lens = prefixes;
    batch.extend_lens = extends;
    batch.owners = owners;
    batch.req_to_token = TensorView(req_to_token.data(), DType::i32, {2, 8});
    batch.input_ids = tokens;
    batch.positions = positions;
    batch.out_cache_loc = locations;
    monitor.begin_step(batch);
    for (const std::int64_t slot : locations)  // the forward: writes the tokens' KV
      for (const KvSegment& s : layout.segments)
        kv[static_cast<std::size_t>(byte_offset(layout, s, slot, layout.page_bytes[0]))] = 0x38;
    monitor.end_step(batch);
  };

  step(0, {101, 102, 103});  // prefill
  kv[static_cast<std::size_t>(
      byte_offset(layout, layout.segments[2], slots[1], layout.page_bytes[0]))] ^= 0x04;
  step(3, {104});  // decode: the head check reads the prefix before attention does

  const std::vector<canary::Violation> found = monitor.poll();
  for (const canary::Violation& v : found) std::printf("%s\n", canary::to_text(v, "kv").c_str());
  return found.size() == 1 ? 0 : 1;
}
