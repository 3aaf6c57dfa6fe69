// Attach a canary to an engine in an hour: the calls, in the places where an engine has them.
// docs/attach.md goes through it. Builds against an installed Serinus (examples/CMakeLists.txt).
#include <cstdio>
#include <vector>

#include <serinus/canary_config.h>
#include <serinus/kv_layout.h>

using namespace serinus;
using Slots = std::vector<std::int64_t>;

struct Engine {  // one request, two layers of MHA: 4 KV heads of 64 bf16 values, pages of 16
  KvLayout layout = kv_layout("mha_nhd", {.page_size = 16, .heads = 4, .head_size = 64});
  std::vector<std::vector<std::uint8_t>> memory;  // k and v of layer 0, k and v of layer 1
  std::vector<std::int32_t> req_to_token = std::vector<std::int32_t>(2 * 64);
  canary::Monitor monitor = canary::make_monitor(canary::read_config());  // 1. configure

  Engine() {
    canary::PoolSpec pool;  // 2. describe the pool
    pool.layout = layout;
    pool.num_layers = 2;
    pool.num_slots = 8 * layout.page_size;
    for (int b = 0; b < 4; ++b) {
      memory.emplace_back(static_cast<std::size_t>(8 * layout.page_bytes[0]));
      pool.buffers.push_back({memory[static_cast<std::size_t>(b)].data(),
                              static_cast<std::int64_t>(memory.back().size()), 0});
    }
    monitor.add_pool(pool);
  }
  void allocate(canary::Owner request, const Slots& slots) {  // 3. say what the allocator does
    for (std::size_t i = 0; i < slots.size(); ++i)
      req_to_token[64 + i] = static_cast<std::int32_t>(slots[i]);
    monitor.on_alloc(0, slots, request);
  }
  void forward(canary::Owner request, std::int64_t prefix, const Slots& tokens, const Slots& out) {
    Slots rows = {1}, prefixes = {prefix}, extends = {std::ssize(tokens)}, positions;
    for (const std::int64_t& t : tokens) positions.push_back(prefix + (&t - tokens.data()));
    const std::vector<canary::Owner> owners = {request};
    canary::Batch batch;  // 4. bracket every forward, with the tables that attention reads
    batch.rows = rows, batch.prefix_lens = prefixes, batch.extend_lens = extends;
    batch.owners = owners, batch.input_ids = tokens, batch.positions = positions;
    batch.out_cache_loc = out;
    batch.req_to_token = TensorView(req_to_token.data(), DType::i32, {2, 64});
    monitor.begin_step(batch);
    for (const std::int64_t slot : out)  // the model: writes the tokens' KV
      memory[0][static_cast<std::size_t>(slot * 4 * 64 * 2)] = 0x3F;
    monitor.end_step(batch);
    for (const canary::Violation& v : monitor.poll()) std::puts(to_text(v, "kv").c_str());  // 5.
  }
};

int main() {
  Engine engine;
  engine.allocate(7, {20, 21, 99});
  engine.forward(7, 0, {101, 102}, {20, 21});  // prefill
  engine.memory[3][21 * 4 * 64 * 2] ^= 1;      // a stray write into V of layer 1
  engine.forward(7, 2, {103}, {99});           // decode: says kv_bytes, slot 21, request 7
  return engine.monitor.stats().violations == 1 ? 0 : 1;
}
