// The float32 path, written once over the few vector operations that its includer defines before
// it, in its own namespace:
//
//   F, kLanes, kTileRows; load, store, splat, zero, multiply, multiply_add, subtract, add, maximum,
//   exp2_nonpositive (NaN stays NaN), decode (kLanes e4m3 values)
//
// No include guard: it is compiled once a SIMD target.

// c[r][v] = start + sum over s of a[r * a_row + s * a_step] * b[s][v], for kRows rows and kVectors
// vectors of heads. `start` is 0 (fresh), c, or c * decay[v].
template <int kRows, int kVectors>
inline void multiply_tile(const float* a, std::ptrdiff_t a_row, std::ptrdiff_t a_step,
                          const float* b, int steps, bool fresh, const float* decay, float* c) {
  constexpr int kWidth = kVectors * kLanes;
  F sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      if (fresh) {
        sum[r][v] = zero();
      } else {
        sum[r][v] = load(c + r * kWidth + v * kLanes);
        if (decay != nullptr) sum[r][v] = multiply(sum[r][v], load(decay + v * kLanes));
      }
    }
  }
  for (int s = 0; s < steps; ++s) {
    F row[kVectors];
    for (int v = 0; v < kVectors; ++v) row[v] = load(b + v * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const F x = splat(a[r * a_row]);
      for (int v = 0; v < kVectors; ++v) sum[r][v] = multiply_add(x, row[v], sum[r][v]);
    }
    a += a_step;
    b += kWidth;
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) store(sum[r][v], c + r * kWidth + v * kLanes);
  }
}

struct Operands {
  const float* a;
  std::ptrdiff_t a_row, a_step;
  const float* b;
  int steps;
  bool fresh;
  const float* decay;
  float* c;
  const Block* fetching = nullptr;  // fetch this block's upcoming rows on the way
};

template <int kRows, int kVectors>
inline int multiply_rows(const Operands& o, int r, int rows) {
  for (; r + kRows <= rows; r += kRows) {
    if (o.fetching != nullptr) fetch_upcoming(*o.fetching, r / kRows, rows / kRows);
    multiply_tile<kRows, kVectors>(o.a + r * o.a_row, o.a_row, o.a_step, o.b, o.steps, o.fresh,
                                   o.decay, o.c + r * kVectors * kLanes);
  }
  return r;
}

template <int kVectors>
inline void multiply_width(const Operands& o, int rows) {
  int r = multiply_rows<kTileRows, kVectors>(o, 0, rows);
  Operands rest = o;
  rest.fetching = nullptr;
  r = multiply_rows<2, kVectors>(rest, r, rows);
  multiply_rows<1, kVectors>(rest, r, rows);
}

inline void multiply(const Operands& o, int rows, int width) {
  switch (width / kLanes) {
    case 1:
      return multiply_width<1>(o, rows);
    case 2:
      return multiply_width<2>(o, rows);
    case 3:
      return multiply_width<3>(o, rows);
    default:
      return multiply_width<4>(o, rows);
  }
}

inline float* floats(std::uint32_t* p) {
  return reinterpret_cast<float*>(p);
}

void pack_query(std::span<const std::uint8_t* const> rows, int d_qk, std::uint8_t flip,
                Group& group) {
  float* const q = floats(group.q);
  std::fill_n(q, d_qk * group.width, 0.0f);
  for (std::size_t h = 0; h < rows.size(); ++h) {
    for (int k = 0; k < d_qk; ++k) {
      q[k * group.width + static_cast<int>(h)] =
          e4m3_to_float(static_cast<std::uint8_t>(rows[h][k] ^ flip));
    }
  }
}

void load_rows(std::span<const std::uint8_t* const> rows, int d_qk, Block& block) {
  block.rows = static_cast<int>(rows.size());
  block.padded = block.rows;
  float* to = floats(block.keys);
  for (const std::uint8_t* row : rows) {
    for (int k = 0; k < d_qk; k += kLanes) store(decode(row + k), to + k);
    to += kKeyPitch;
  }
}

void score(const Block& block, int d_qk, const Group& group, float* scores) {
  // A part of the query that stays in the L1 cache while all rows pass over it.
  constexpr int kSteps = 96;
  for (int k = 0; k < d_qk; k += kSteps) {
    multiply({.a = floats(block.keys) + k,
              .a_row = kKeyPitch,
              .a_step = 1,
              .b = floats(group.q) + k * group.width,
              .steps = std::min(kSteps, d_qk - k),
              .fresh = k == 0,
              .decay = nullptr,
              .c = scores},
             block.rows, group.width);
  }
}

void weigh(const Block& block, float factor, const float* scores, Group& group, Weights& weights) {
  const F f = splat(factor);
  for (int v = 0; v < group.width; v += kLanes) {
    F top = load(scores + v);
    for (int n = 1; n < block.rows; ++n) top = maximum(top, load(scores + n * group.width + v));
    F sum = zero();
    if (group.started) {
      const F before = load(group.max_score + v);
      top = maximum(top, before);
      const F decay = exp2_nonpositive(multiply(subtract(before, top), f));
      store(decay, group.decay + v);
      sum = multiply(load(group.sum + v), decay);
    }
    for (int n = 0; n < block.rows; ++n) {
      const F weight =
          exp2_nonpositive(multiply(subtract(load(scores + n * group.width + v), top), f));
      store(weight, floats(weights.high) + n * group.width + v);
      sum = add(sum, weight);
    }
    store(top, group.max_score + v);
    store(sum, group.sum + v);
  }
}

void accumulate(const Block& block, const Weights& weights, Group& group) {
  multiply({.a = floats(block.keys),
            .a_row = 1,
            .a_step = kKeyPitch,
            .b = floats(weights.high),
            .steps = block.rows,
            .fresh = !group.started,
            .decay = group.decay,
            .c = group.accumulated,
            .fetching = &block},
           kDV, group.width);
}

void finish(const Group& group, const float* factor, std::uint16_t* out) {
  for (int h = 0; h < group.heads; ++h) {
    for (int c = 0; c < kDV; ++c) {
      out[h * kDV + c] = bf16_from_float(group.accumulated[c * group.width + h] * factor[h]);
    }
  }
}
