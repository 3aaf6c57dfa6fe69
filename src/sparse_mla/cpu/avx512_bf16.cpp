// The path for CPUs with bf16 dot products (AVX512-BF16 with VBMI: Zen 4, Sapphire Rapids and
// later), where a dot product of bf16 pairs does twice the work of a float32 multiply-add.
//
// e4m3 values are exact in bf16, so q·k loses nothing. A weight is not: it is split into the
// nearest bf16 and the nearest bf16 of what that leaves over, which together keep 16 bits of it,
// and both multiply V and add up in float32. Where the caller lets P be bf16 (p_dtype), the first
// part is all, and the denominator is the sum of what multiplies V. docs/design/sparse_mla_cpu.md
// has the errors that this leaves.
//
// Highway 1.0 has no such target, hence intrinsics; nothing here may be called unless
// avx512_bf16_path() is not null.
#include <immintrin.h>

#include <algorithm>
#include <array>

#include "base/dtypes.h"
#include "sparse_mla/cpu/kernels.h"

#define SERINUS_AVX512 \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512bf16")))
#define SERINUS_AVX512_INLINE SERINUS_AVX512 __attribute__((always_inline)) inline

namespace serinus::sparse_mla {

namespace {

constexpr int kLanes = 16;
constexpr int kTileRows = 6;  // 24 accumulators, 4 vectors of heads, 1 broadcast: 29 of 32

// ---------------------------------------------------------------- matrix products

// c[r][v] = start + sum over s of a[r * a_row + s * a_step] · b[s][v], where every element is a
// pair of bf16 and the start is 0 (fresh), c, or c * decay[v]. With `low` the same a also meets
// low[s][v].
struct Operands {
  const std::uint32_t* a;
  std::ptrdiff_t a_row, a_step;
  const std::uint32_t* b;
  const std::uint32_t* low;
  int steps;
  bool fresh;
  const float* decay;
  float* c;
};

template <int kRows, int kVectors>
SERINUS_AVX512_INLINE void add_step(__m512 (&sum)[kRows][kVectors], const std::uint32_t* a,
                                    std::ptrdiff_t a_row, const std::uint32_t* b) {
  __m512i row[kVectors];
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) row[v] = _mm512_load_si512(b + v * kLanes);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    const __m512i x = _mm512_set1_epi32(static_cast<int>(a[r * a_row]));
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = _mm512_dpbf16_ps(sum[r][v], (__m512bh)row[v], (__m512bh)x);
    }
  }
}

template <int kRows, int kVectors, bool kLow>
SERINUS_AVX512_INLINE void multiply_tile(const Operands& o, int at) {
  constexpr int kWidth = kVectors * kLanes;
  float* const c = o.c + at * kWidth;
  __m512 sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = o.fresh ? _mm512_setzero_ps() : _mm512_load_ps(c + r * kWidth + v * kLanes);
      if (o.decay != nullptr) {
        sum[r][v] = _mm512_mul_ps(sum[r][v], _mm512_load_ps(o.decay + v * kLanes));
      }
    }
  }
  const std::uint32_t* a = o.a + at * o.a_row;
  const std::uint32_t* b = o.b;
  const std::uint32_t* low = o.low;
  for (int s = 0; s < o.steps; ++s) {
    add_step(sum, a, o.a_row, b);
    b += kWidth;
    if constexpr (kLow) {
      add_step(sum, a, o.a_row, low);
      low += kWidth;
    }
    a += o.a_step;
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) _mm512_store_ps(c + r * kWidth + v * kLanes, sum[r][v]);
  }
}

// `rows` is even. Fetches what `fetching` wants on the way.
template <int kVectors, bool kLow>
SERINUS_AVX512 void multiply_width(const Operands& o, int rows, const Block* fetching) {
  int r = 0;
  for (; r + kTileRows <= rows; r += kTileRows) {
    if (fetching != nullptr) fetch_upcoming(*fetching, r / kTileRows, rows / kTileRows);
    multiply_tile<kTileRows, kVectors, kLow>(o, r);
  }
  for (; r < rows; r += 2) multiply_tile<2, kVectors, kLow>(o, r);
}

template <bool kLow>
void multiply(const Operands& o, int rows, int width, const Block* fetching) {
  switch (width / kLanes) {
    case 1:
      return multiply_width<1, kLow>(o, rows, fetching);
    case 2:
      return multiply_width<2, kLow>(o, rows, fetching);
    case 3:
      return multiply_width<3, kLow>(o, rows, fetching);
    default:
      return multiply_width<4, kLow>(o, rows, fetching);
  }
}

// ---------------------------------------------------------------- e4m3 by table

// By magnitude, the lower 7 bits of an e4m3 code.
struct Tables {
  alignas(64) std::array<std::uint8_t, 128> bf16_low{}, bf16_high{};
};

constexpr Tables make_tables() {
  Tables t;
  for (std::size_t m = 0; m < 128; ++m) {
    const float value = e4m3_to_float(static_cast<std::uint8_t>(m));
    const std::uint16_t bits = bf16_from_float(value);
    t.bf16_low[m] = static_cast<std::uint8_t>(bits & 0xff);
    t.bf16_high[m] = static_cast<std::uint8_t>(bits >> 8);
  }
  return t;
}

constexpr Tables kTables = make_tables();

struct Bf16Table {
  __m512i low0, low1, high0, high1;
};

SERINUS_AVX512_INLINE Bf16Table bf16_table() {
  return {_mm512_load_si512(kTables.bf16_low.data()),
          _mm512_load_si512(kTables.bf16_low.data() + 64),
          _mm512_load_si512(kTables.bf16_high.data()),
          _mm512_load_si512(kTables.bf16_high.data() + 64)};
}

// 64 e4m3 codes as bf16, in two vectors. Like every interleaving here this works within lanes of 16
// bytes: `first` has codes 16 i .. 16 i + 7 of every lane i, `second` the others. Query and keys
// are permuted alike, and a product does not care; for values see column_of().
struct Bf16Columns {
  __m512i first, second;
};

SERINUS_AVX512_INLINE Bf16Columns to_bf16(const Bf16Table& t, __m512i codes) {
  const __m512i low = _mm512_permutex2var_epi8(t.low0, codes, t.low1);
  const __m512i magnitude = _mm512_permutex2var_epi8(t.high0, codes, t.high1);
  const __m512i sign = _mm512_and_si512(codes, _mm512_set1_epi8(static_cast<char>(0x80)));
  const __m512i high = _mm512_or_si512(magnitude, sign);
  return {_mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high)};
}

// The column of V at position `at` of the accumulators. In each 64 columns, vector u of 4 holds
// columns 16 i + 4 u + 0..3 of every lane i.
constexpr int column_of(int at) {
  return at / 64 * 64 + at / 4 % 4 * 16 + at / 16 % 4 * 4 + at % 4;
}

// ---------------------------------------------------------------- the path

SERINUS_AVX512 void pack_query(std::span<const std::uint8_t* const> rows, int d_qk,
                               std::uint8_t flip, Group& group) {
  const Bf16Table table = bf16_table();
  const __m512i signs = _mm512_set1_epi8(static_cast<char>(flip));
  std::fill_n(group.q, d_qk / 2 * group.width, 0u);
  for (std::size_t h = 0; h < rows.size(); ++h) {
    for (int k = 0; k < d_qk; k += 64) {
      const __m512i codes = _mm512_xor_si512(_mm512_loadu_si512(rows[h] + k), signs);
      const Bf16Columns columns = to_bf16(table, codes);
      alignas(64) std::uint32_t pairs[32];
      _mm512_store_si512(pairs, columns.first);
      _mm512_store_si512(pairs + 16, columns.second);
      std::uint32_t* to = group.q + k / 2 * group.width + h;
      for (int i = 0; i < 32; ++i) to[i * group.width] = pairs[i];
    }
  }
}

// Four vectors whose 32-bit elements go to columns as column_of() says.
struct Interleaved {
  __m512i at[4];
};

// Words: pairs of bf16 of two rows.
SERINUS_AVX512_INLINE Interleaved pair_up(const Bf16Columns& a, const Bf16Columns& b) {
  return {_mm512_unpacklo_epi16(a.first, b.first), _mm512_unpackhi_epi16(a.first, b.first),
          _mm512_unpacklo_epi16(a.second, b.second), _mm512_unpackhi_epi16(a.second, b.second)};
}

SERINUS_AVX512 void load_rows(std::span<const std::uint8_t* const> rows, int d_qk, Block& block) {
  static constexpr std::array<std::uint8_t, kMaxDQk> kZeros{};
  const Bf16Table table = bf16_table();
  block.rows = static_cast<int>(rows.size());
  block.padded = (block.rows + 1) / 2 * 2;
  for (int n = 0; n < block.padded; n += 2) {
    const std::uint8_t* const row0 = rows[static_cast<std::size_t>(n)];
    const std::uint8_t* const row1 =
        n + 1 < block.rows ? rows[static_cast<std::size_t>(n + 1)] : kZeros.data();
    std::uint32_t* const key = block.keys + n * kKeyPitch;
    std::uint32_t* const value = block.values + n / 2 * kValuePitch;
    for (int k = 0; k < d_qk; k += 64) {
      const Bf16Columns columns0 = to_bf16(table, _mm512_loadu_si512(row0 + k));
      const Bf16Columns columns1 = to_bf16(table, _mm512_loadu_si512(row1 + k));
      _mm512_store_si512(key + k / 2, columns0.first);
      _mm512_store_si512(key + k / 2 + 16, columns0.second);
      _mm512_store_si512(key + kKeyPitch + k / 2, columns1.first);
      _mm512_store_si512(key + kKeyPitch + k / 2 + 16, columns1.second);
      if (k >= kDV) continue;
      const Interleaved pairs = pair_up(columns0, columns1);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) _mm512_store_si512(value + k + 16 * i, pairs.at[i]);
    }
  }
}

void score(const Block& block, int d_qk, const Group& group, float* scores) {
  // A part of the query that stays in the L1 cache while all rows pass over it.
  constexpr int kSteps = 96;
  const int steps = d_qk / 2;
  for (int k = 0; k < steps; k += kSteps) {
    multiply<false>({.a = block.keys + k,
                     .a_row = kKeyPitch,
                     .a_step = 1,
                     .b = group.q + k * group.width,
                     .low = nullptr,
                     .steps = std::min(kSteps, steps - k),
                     .fresh = k == 0,
                     .decay = nullptr,
                     .c = scores},
                    block.padded, group.width, nullptr);
  }
}

// 2^x for x <= 0 = 2^round(x) * 2^rest by Taylor's series, whose next term is below 2^-29.
SERINUS_AVX512_INLINE __m512 exp2_nonpositive(__m512 x) {
  x = _mm512_max_ps(_mm512_set1_ps(-200.0f), x);  // of a number and NaN max_ps takes the second
  const __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 rest = _mm512_sub_ps(x, whole);
  __m512 y = _mm512_set1_ps(1.5252734e-5f);
  y = _mm512_fmadd_ps(y, rest, _mm512_set1_ps(1.5403530e-4f));
  y = _mm512_fmadd_ps(y, rest, _mm512_set1_ps(1.3333558e-3f));
  y = _mm512_fmadd_ps(y, rest, _mm512_set1_ps(9.6181291e-3f));
  y = _mm512_fmadd_ps(y, rest, _mm512_set1_ps(5.5504109e-2f));
  y = _mm512_fmadd_ps(y, rest, _mm512_set1_ps(2.4022651e-1f));
  y = _mm512_fmadd_ps(y, rest, _mm512_set1_ps(6.9314718e-1f));
  y = _mm512_fmadd_ps(y, rest, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(y, whole);
}

// Rounds to bf16 (to nearest, ties to even), left in the upper half of each element. The NaN that
// arithmetic makes stay NaN: only a payload of all ones would overflow.
SERINUS_AVX512_INLINE __m512i round_to_bf16(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i up = _mm512_add_epi32(_mm512_set1_epi32(0x7fff), odd);
  return _mm512_and_si512(_mm512_add_epi32(bits, up),
                          _mm512_set1_epi32(static_cast<int>(0xffff0000u)));
}

// The weights in two bf16 parts each, or in one.
template <bool kTwoParts>
SERINUS_AVX512 void weigh_in(const Block& block, float factor, const float* scores, Group& group,
                             Weights& weights) {
  const __m512 f = _mm512_set1_ps(factor);
  const int width = group.width;
  for (int v = 0; v < width; v += kLanes) {
    __m512 block_top = _mm512_load_ps(scores + v);
    for (int n = 1; n < block.rows; ++n) {
      block_top = _mm512_max_ps(block_top, _mm512_load_ps(scores + n * width + v));
    }
    __m512 top = block_top;
    __m512 sum = _mm512_setzero_ps();
    if (group.started) {
      const __m512 before = _mm512_load_ps(group.max_score + v);
      top = _mm512_max_ps(top, before);
      const __m512 decay = exp2_nonpositive(_mm512_mul_ps(_mm512_sub_ps(before, top), f));
      _mm512_store_ps(group.decay + v, decay);
      sum = _mm512_mul_ps(_mm512_load_ps(group.sum + v), decay);
    }
    for (int n = 0; n < block.padded; n += 2) {
      __m512i high[2];
      [[maybe_unused]] __m512i low[2];
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) {
        const __m512 score = _mm512_load_ps(scores + (n + i) * width + v);
        __m512 weight = exp2_nonpositive(_mm512_mul_ps(_mm512_sub_ps(score, top), f));
        if (n + i >= block.rows) weight = _mm512_setzero_ps();
        high[i] = round_to_bf16(weight);
        const __m512 rounded = _mm512_castsi512_ps(high[i]);
        sum = _mm512_add_ps(sum, kTwoParts ? weight : rounded);
        if constexpr (kTwoParts) low[i] = round_to_bf16(_mm512_sub_ps(weight, rounded));
      }
      const int at = n / 2 * width + v;
      _mm512_store_si512(weights.high + at,
                         _mm512_or_si512(_mm512_srli_epi32(high[0], 16), high[1]));
      if constexpr (kTwoParts) {
        _mm512_store_si512(weights.low + at,
                           _mm512_or_si512(_mm512_srli_epi32(low[0], 16), low[1]));
      }
    }
    _mm512_store_ps(group.max_score + v, top);
    _mm512_store_ps(group.sum + v, sum);
  }
}

void weigh(const Block& block, float factor, const float* scores, Group& group, Weights& weights) {
  (weights.low != nullptr ? weigh_in<true> : weigh_in<false>)(block, factor, scores, group,
                                                              weights);
}

void accumulate(const Block& block, const Weights& weights, Group& group) {
  const Operands o = {.a = block.values,
                      .a_row = 1,
                      .a_step = kValuePitch,
                      .b = weights.high,
                      .low = weights.low,
                      .steps = block.padded / 2,
                      .fresh = !group.started,
                      .decay = group.started ? group.decay : nullptr,
                      .c = group.accumulated};
  (weights.low != nullptr ? multiply<true> : multiply<false>)(o, kDV, group.width, &block);
}

SERINUS_AVX512 void finish(const Group& group, const float* factor, std::uint16_t* out) {
  // Scaled and rounded with heads along the vector, then turned, 16 heads at a time.
  alignas(64) std::uint16_t turned[kDV][kLanes];
  for (int v = 0; v < group.heads; v += kLanes) {
    const __m512 scale = _mm512_load_ps(factor + v);
    for (int at = 0; at < kDV; ++at) {
      const __m512 x =
          _mm512_mul_ps(_mm512_load_ps(group.accumulated + at * group.width + v), scale);
      const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
      const __m512i bits = _mm512_mask_mov_epi32(_mm512_srli_epi32(round_to_bf16(x), 16), nan,
                                                 _mm512_set1_epi32(0x7fc0));
      _mm256_store_si256(reinterpret_cast<__m256i*>(turned[column_of(at)]),
                         _mm512_cvtepi32_epi16(bits));
    }
    for (int h = 0; h < std::min(group.heads - v, kLanes); ++h) {
      for (int c = 0; c < kDV; ++c) out[(v + h) * kDV + c] = turned[c][h];
    }
  }
}

constexpr Kernels kPath = {"bf16 AVX-512", kLanes, pack_query, load_rows,
                           score,          weigh,  accumulate, finish};

}  // namespace

const Kernels* avx512_bf16_path() {
  const bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                   __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512bf16");
  return has ? &kPath : nullptr;
}

}  // namespace serinus::sparse_mla
