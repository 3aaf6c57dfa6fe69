// A pool small enough to follow by hand, and the Monitor over it.
#pragma once

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include <serinus/canary.h>

namespace serinus::canary::testing {

/// Two buffers a layer (kv and idx), tokens of 24 + 12 bytes, odd strides.
inline KvLayout small_layout(std::int64_t page_size = 4) {
  KvLayout layout;
  layout.name = "small";
  layout.page_size = page_size;
  layout.page_bytes = {page_size * 28, page_size * 12};
  layout.segments = {{"kv", SegmentRole::latent, 0, 0, 28, 24, -1, "24 bytes"},
                     {"idx", SegmentRole::index_key, 1, 0, 12, 12, -1, "12 bytes"}};
  return layout;
}

struct PoolBytes {
  std::vector<std::vector<std::uint8_t>> buffers;
  PoolSpec spec;

  PoolBytes(std::int64_t num_slots, int layers, KvLayout layout = small_layout()) {
    spec.layout = std::move(layout);
    spec.num_layers = layers;
    spec.num_slots = num_slots;
    const std::int64_t pages = (num_slots + spec.layout.page_size - 1) / spec.layout.page_size;
    for (int l = 0; l < layers; ++l) {
      for (const std::int64_t page : spec.layout.page_bytes) {
        buffers.emplace_back(static_cast<std::size_t>(pages * page));
      }
    }
    for (auto& b : buffers) {
      spec.buffers.push_back({b.data(), static_cast<std::int64_t>(b.size()), 0});
    }
  }

  /// The bytes that a forward would write for `token` at `position`.
  void fill(std::int64_t slot, std::uint32_t token, std::int64_t position) {
    for (const Source& s : sources_of(spec.layout, spec.num_layers, spec.buffers)) {
      std::uint8_t* p = at(s, slot);
      for (std::int64_t i = 0; i < s.bytes; ++i) {
        p[i] = static_cast<std::uint8_t>(token * 31 + static_cast<std::uint32_t>(position) * 7 +
                                         static_cast<std::uint32_t>(i + s.key_offset) * 13);
      }
    }
  }
  std::uint8_t* at(const Source& s, std::int64_t slot) {
    const std::int64_t page = spec.layout.page_size;
    return const_cast<std::uint8_t*>(s.base) + slot / page * s.page_stride + s.offset +
           slot % page * s.token_stride;
  }
  std::uint8_t* byte(std::int64_t slot, std::size_t source, std::int64_t offset) {
    return at(sources_of(spec.layout, spec.num_layers, spec.buffers)[source], slot) + offset;
  }
  void copy(std::int64_t from, std::int64_t to) {
    for (const Source& s : sources_of(spec.layout, spec.num_layers, spec.buffers)) {
      std::memcpy(at(s, to), at(s, from), static_cast<std::size_t>(s.bytes));
    }
  }
};

/// One engine: a table of 8 rows x 64 cells, one pool unless more are added. Request r uses row r.
struct Rig {
  static constexpr std::int64_t kRows = 8, kCells = 64;

  explicit Rig(std::int64_t num_slots = 32, Options options = {}, int layers = 2)
      : monitor(options), bytes(num_slots, layers) {
    if (options.depth == Depth::none) bytes.spec.buffers.clear();
    pool = monitor.add_pool(bytes.spec);
  }

  using Slots = std::vector<std::int64_t>;

  void alloc(Owner owner, const Slots& slots) { monitor.on_alloc(pool, slots, owner); }
  void free(const Slots& slots, Owner owner = 0) { monitor.on_free(pool, slots, owner); }

  void map(Owner owner, std::int64_t first_cell, const Slots& slots) {
    for (std::size_t i = 0; i < slots.size(); ++i) {
      table[owner * kCells + static_cast<std::size_t>(first_cell) + i] =
          static_cast<std::int32_t>(slots[i]);
    }
  }

  static std::uint32_t token_of(Owner owner, std::int64_t position) {
    return owner * 1000 + static_cast<std::uint32_t>(position);
  }

  Batch batch() const {
    Batch b;
    b.req_to_token =
        TensorView(const_cast<std::int32_t*>(table.data()), DType::i32, {kRows, kCells});
    if (know_tokens) {
      b.expected_tokens =
          TensorView(const_cast<std::int32_t*>(expected.data()), DType::i32, {kRows, kCells});
    }
    return b;
  }

  /// What a forward hands over, request by request; tokens are the owner's own unless given.
  struct Forward {
    std::vector<std::int64_t> rows, prefix, extend, ids, positions, locations, parents, valid;
    std::vector<Owner> owners;
    Batch batch;

    void add(Owner owner, std::int64_t first, const Slots& slots,
             const std::vector<std::int64_t>& tokens = {}) {
      rows.push_back(owner);
      owners.push_back(owner);
      prefix.push_back(first);
      extend.push_back(std::ssize(slots));
      for (std::size_t i = 0; i < slots.size(); ++i) {
        const std::int64_t position = first + static_cast<std::int64_t>(i);
        positions.push_back(position);
        ids.push_back(i < tokens.size() ? tokens[i] : token_of(owner, position));
        locations.push_back(slots[i]);
      }
    }
    /// `b` with these arrays, as long as they live and stay.
    Batch with(Batch b) const {
      b.rows = rows;
      b.owners = owners;
      b.prefix_lens = prefix;
      b.extend_lens = extend;
      b.input_ids = ids;
      b.positions = positions;
      b.out_cache_loc = locations;
      b.parents = parents;
      b.valid_lens = valid;
      return b;
    }
  };
  Forward forward(Owner owner, std::int64_t prefix, const Slots& slots,
                  const std::vector<std::int64_t>& ids = {}) const {
    Forward f;
    f.add(owner, prefix, slots, ids);
    f.batch = f.with(batch());
    return f;
  }

  /// A whole forward: table, head, bytes, tail.
  void run(Owner owner, std::int64_t prefix, const Slots& slots,
           const std::vector<std::int64_t>& ids = {}) {
    map(owner, prefix, slots);
    const Forward f = forward(owner, prefix, slots, ids);
    monitor.begin_step(f.batch);
    write_bytes(f);
    monitor.end_step(f.batch);
  }
  void write_bytes(const Forward& f) {
    for (std::size_t i = 0; i < f.locations.size(); ++i) {
      if (f.locations[i] < 0 || f.locations[i] >= bytes.spec.num_slots) continue;
      bytes.fill(f.locations[i], static_cast<std::uint32_t>(f.ids[i]), f.positions[i]);
    }
  }
  /// One decode step that writes nothing: head and tail checks over the prefix.
  void look(Owner owner, std::int64_t prefix) { run(owner, prefix, {}); }

  void expect_tokens(Owner owner, std::int64_t length) {
    know_tokens = true;
    for (std::int64_t i = 0; i < length; ++i) {
      expected[owner * kCells + static_cast<std::size_t>(i)] =
          static_cast<std::int32_t>(token_of(owner, i));
    }
  }

  void verify(Owner owner, std::int64_t begin, std::int64_t end, Moment m = Moment::tail) {
    monitor.verify_now(m, owner, owner, begin, end, batch());
  }

  /// All reasons found since the last call.
  Reason found() {
    Reason all = Reason::none;
    for (const Violation& v : monitor.poll()) all |= v.reasons;
    return all;
  }
  std::string names() { return names_of(found()); }

  Record& record(std::int64_t slot) {
    return monitor.records(pool)[static_cast<std::size_t>(slot)];
  }

  Monitor monitor;
  PoolBytes bytes;
  int pool = 0;
  std::vector<std::int32_t> table = std::vector<std::int32_t>(kRows * kCells);
  std::vector<std::int32_t> expected = std::vector<std::int32_t>(kRows * kCells, -1);
  bool know_tokens = false;
};

}  // namespace serinus::canary::testing
