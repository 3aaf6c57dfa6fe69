// How the pools of today's engines are described, one function each, and what the canary says when
// a byte of theirs flips. Builds against an installed Serinus (examples/CMakeLists.txt).
#include <cstdio>
#include <deque>
#include <string>
#include <vector>

#include <serinus/canary.h>
#include <serinus/kv_layout.h>

using namespace serinus;
using Ints = std::vector<std::int64_t>;

constexpr int kLayers = 3;
constexpr std::int64_t kPages = 4;

// Memory of an engine, as it lies there anyway.
std::deque<std::vector<std::uint8_t>> memory;
std::uint8_t* allocate(std::int64_t bytes) {
  return memory.emplace_back(static_cast<std::size_t>(bytes)).data();
}

/// A buffer of its own for every buffer of every layer, layer by layer: k0, v0, k1, v1, ...
canary::PoolSpec pool_of(const KvLayout& layout) {
  canary::PoolSpec pool;
  pool.name = layout.name;
  pool.layout = layout;
  pool.num_layers = kLayers;
  pool.num_slots = kPages * layout.page_size;
  for (int layer = 0; layer < kLayers; ++layer) {
    for (const std::int64_t page : layout.page_bytes) {
      pool.buffers.push_back({allocate(kPages * page), kPages * page, 0});
    }
  }
  return pool;
}

// MHA: k and v apart (SGLang, vLLM's (2, blocks, ...)), with the tokens of a page or its heads
// first; k and v in one page (blocks first); k and v in one row (packed).
canary::PoolSpec mha(const char* name) {
  return pool_of(kv_layout(name, {.page_size = 16, .heads = 4, .head_size = 64}));
}

// All layers in one allocation, page by page: vLLM's cross-layer blocks. Strides say it.
canary::PoolSpec interleaved() {
  canary::PoolSpec pool = pool_of(kv_layout("fp8_656"));
  pool.name = "fp8_656, interleaved";
  const std::int64_t page = pool.layout.page_bytes[0], all = kPages * kLayers * page;
  std::uint8_t* const base = allocate(all);
  for (int l = 0; l < kLayers; ++l) {
    pool.buffers[static_cast<std::size_t>(l)] = {base + l * page, all - l * page, kLayers * page};
  }
  return pool;
}

// DeepSeek sparse attention: the indexer's keys are a second buffer of every layer.
canary::PoolSpec dsa() {
  KvLayout layout = kv_layout("fp8_656");
  const KvLayout indexer = kv_layout("dsa_indexer_132", {.page_size = layout.page_size});
  layout.name = "fp8_656 + dsa_indexer_132";
  for (KvSegment s : indexer.segments) {
    s.name = "indexer." + s.name;
    s.buffer = layout.num_buffers();
    layout.segments.push_back(s);
  }
  layout.page_bytes.push_back(indexer.page_bytes[0]);
  return pool_of(layout);
}

/// One request of four tokens; then a bit of `pool` flips. What the canary says.
canary::Violation flip(const std::vector<canary::PoolSpec>& pools, int pool) {
  canary::Monitor monitor({.verify = canary::VerifyPolicy::all, .source_digests = true});
  for (const canary::PoolSpec& p : pools) monitor.add_pool(p);
  const Ints slots = {3, 17, 4, 30}, ids = {101, 102, 103, 104}, positions = {0, 1, 2, 3};
  std::vector<std::int32_t> table(2 * 8);
  for (int p = 0; p < monitor.num_pools(); ++p) {
    Ints there = slots;
    const auto& map = monitor.pool(p).full_to_swa;
    for (std::int64_t& s : there) s = map.empty() ? s : map[static_cast<std::size_t>(s)];
    monitor.on_alloc(p, there, 7);
  }
  for (std::size_t i = 0; i < 4; ++i) table[8 + i] = static_cast<std::int32_t>(slots[i]);
  Ints rows = {1}, prefix = {0}, extend = {4};
  const std::vector<canary::Owner> owners = {7};
  canary::Batch batch;
  batch.rows = rows, batch.prefix_lens = prefix, batch.extend_lens = extend, batch.owners = owners;
  batch.req_to_token = TensorView(table.data(), DType::i32, {2, 8});
  batch.input_ids = ids, batch.positions = positions, batch.out_cache_loc = slots;
  monitor.begin_step(batch);
  monitor.end_step(batch);
  const canary::PoolSpec& spec = pools[static_cast<std::size_t>(pool)];
  const KvSegment& last = spec.layout.segments.back();
  const KvBuffer& buffer = spec.buffers[static_cast<std::size_t>(
      (kLayers - 1) * spec.layout.num_buffers() + last.buffer)];
  const std::int64_t slot = spec.full_to_swa.empty() ? 17 : spec.full_to_swa[17];
  const std::int64_t stride = buffer.page_stride != 0
                                  ? buffer.page_stride
                                  : spec.layout.page_bytes[static_cast<std::size_t>(last.buffer)];
  buffer.data[byte_offset(spec.layout, last, slot, stride) + last.bytes - 1] ^= 1;
  prefix = {4}, extend = {0};
  batch.input_ids = batch.positions = batch.out_cache_loc = {};
  monitor.begin_step(batch);
  const std::vector<canary::Violation> found = monitor.poll();
  return found.size() == 1 ? found[0] : canary::Violation{};
}

int main() {
  // gpt-oss, Gemma: full layers in one pool, windowed ones in another, whose slots are numbered
  // apart.
  canary::PoolSpec full = mha("mha_nhd"), window = mha("mha_nhd");
  Ints full_to_swa(static_cast<std::size_t>(full.num_slots));
  for (std::size_t i = 1; i < full_to_swa.size(); ++i) {
    full_to_swa[i] = static_cast<std::int64_t>(full_to_swa.size() - i);
  }
  window.name = "mha_nhd, sliding window";
  window.kind = canary::PoolKind::swa;
  window.window = 128;
  window.full_to_swa = full_to_swa;

  bool fine = true;
  const auto show = [&](const std::vector<canary::PoolSpec>& pools, int pool = 0) {
    const canary::PoolSpec& p = pools[static_cast<std::size_t>(pool)];
    const canary::Violation v = flip(pools, pool);
    std::printf("%-26s %s layer=%d segment=%s\n", p.name.c_str(), names_of(v.reasons).c_str(),
                v.layer, v.segment.c_str());
    fine = fine && v.reasons == canary::Reason::kv_bytes && v.layer == kLayers - 1 &&
           v.segment == p.layout.segments.back().name;
  };
  for (const char* name : {"mha_nhd", "mha_hnd", "mha_blocks_first", "mha_packed"})
    show({mha(name)});
  // MLA; DeepSeek-V4's 584 bytes; FP4 with its scales in the page.
  for (const char* name :
       {"bf16_1152", "fp8_576", "fp8_656", "dsv4_584", "mxfp8_528", "nvfp4_384"}) {
    show({pool_of(kv_layout(name))});
  }
  show({interleaved()});
  show({dsa()});
  show({full, window}, 1);
  return fine ? 0 : 1;
}
