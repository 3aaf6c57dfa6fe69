// The path for CPUs with dot products of bf16 and of bytes (AVX512-BF16, VNNI and VBMI: Zen 4,
// Sapphire Rapids and later), which do twice and four times the work of a float32 multiply-add.
//
// e4m3 values are exact in bf16, so q·k loses nothing. A weight is not: it is split into the
// nearest bf16, which multiplies V as it is, and what that leaves over, which is so small that 8
// bits of it and of V do: together they err by some 2^-16 of the block's largest weight and value.
// Where the caller lets P be bf16 (p_dtype), the first part is all, and the denominator is the sum
// of what multiplies V. docs/design/sparse_mla_cpu.md has the errors that this leaves.
//
// Highway 1.0 has no such target, hence intrinsics; nothing here may be called unless
// avx512_bf16_path() is not null.
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <span>

#include "base/dtypes.h"
#include "sparse_mla/cpu/kernels.h"

#define SERINUS_AVX512 \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512bf16,avx512vnni")))
#define SERINUS_AVX512_INLINE SERINUS_AVX512 __attribute__((always_inline)) inline

namespace serinus::sparse_mla {

namespace {

constexpr int kLanes = 16;
constexpr int kTileRows = 6;  // 24 accumulators, 4 vectors of heads, 1 broadcast: 29 of 32

// ---------------------------------------------------------------- matrix products

// The same product of bytes, four at a time: a is unsigned, 128 too large, which `offset` takes
// back, and b is signed.
struct LowOperands {
  const std::uint32_t* a;
  const std::uint32_t* b;
  const std::int32_t* offset;  // [width]
  const float* step;           // [width], of b
  float a_step;
};

// c[r][v] = start + sum over s of a[r * a_row + s * a_step] · b[s][v], where every element is a
// pair of bf16 and the start is 0 (fresh), c, or c * decay[v]. The low part is worked out before:
// its sums need all the registers, too.
struct Operands {
  const std::uint32_t* a;
  std::ptrdiff_t a_row, a_step;
  const std::uint32_t* b;
  LowOperands low;
  int steps;
  bool fresh;
  const float* decay;
  float* c;
};

SERINUS_AVX512_INLINE __m512 dot(__m512 sum, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(sum, (__m512bh)b, (__m512bh)a);
}
SERINUS_AVX512_INLINE __m512i dot(__m512i sum, __m512i a, __m512i b) {
  // In place of the intrinsic, with which gcc 12 stores every sum at every step: half the rate.
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
  return sum;
}

// sum[r][v] = dot(sum[r][v], a[r], b[v]), `steps` times.
template <int kVectors, class T, int kSums>
SERINUS_AVX512_INLINE void add_products(T (&sum)[kSums], const std::uint32_t* a,
                                        std::ptrdiff_t a_row, std::ptrdiff_t a_step,
                                        const std::uint32_t* b, int steps) {
  for (int s = 0; s < steps; ++s) {
#pragma GCC unroll 24
    for (int i = 0; i < kSums; ++i) {
      sum[i] = dot(sum[i], _mm512_set1_epi32(static_cast<int>(a[i / kVectors * a_row])),
                   _mm512_load_si512(b + i % kVectors * kLanes));
    }
    a += a_step;
    b += kVectors * kLanes;
  }
}

template <int kVectors, int kSums>
SERINUS_AVX512_INLINE void low_products(__m512 (&sum)[kSums], const Operands& o, int at) {
  __m512i bytes[kSums];
#pragma GCC unroll 24
  for (int i = 0; i < kSums; ++i) {
    bytes[i] = _mm512_load_si512(o.low.offset + i % kVectors * kLanes);
  }
  add_products<kVectors>(bytes, o.low.a + at * o.a_row, o.a_row, o.a_step, o.low.b, o.steps / 2);
  const __m512 a_step = _mm512_set1_ps(o.low.a_step);
#pragma GCC unroll 24
  for (int i = 0; i < kSums; ++i) {
    const __m512 step = _mm512_mul_ps(_mm512_load_ps(o.low.step + i % kVectors * kLanes), a_step);
    sum[i] = _mm512_mul_ps(_mm512_cvtepi32_ps(bytes[i]), step);
  }
}

template <int kRows, int kVectors, bool kLow>
SERINUS_AVX512_INLINE void multiply_tile(const Operands& o, int at) {
  constexpr int kSums = kRows * kVectors;
  float* const c = o.c + at * kVectors * kLanes;
  __m512 sum[kSums];
  if constexpr (kLow) low_products<kVectors>(sum, o, at);
#pragma GCC unroll 24
  for (int i = 0; i < kSums; ++i) {
    if (!kLow) sum[i] = _mm512_setzero_ps();
    if (o.fresh) continue;
    const __m512 before = _mm512_load_ps(c + i * kLanes);
    sum[i] = o.decay != nullptr
                 ? _mm512_fmadd_ps(before, _mm512_load_ps(o.decay + i % kVectors * kLanes), sum[i])
                 : _mm512_add_ps(before, sum[i]);
  }
  add_products<kVectors>(sum, o.a + at * o.a_row, o.a_row, o.a_step, o.b, o.steps);
#pragma GCC unroll 24
  for (int i = 0; i < kSums; ++i) _mm512_store_ps(c + i * kLanes, sum[i]);
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
  // In steps that leave 7 bits to the largest value of a block, by the exponent of that value.
  alignas(64) std::array<std::array<std::uint8_t, 128>, 16> coarse{};
};

constexpr float coarse_step(int exponent) {
  float step = 1.0f / 4096;  // the exponents 0 (subnormals) and 1 share their scale
  for (int e = 1; e < exponent; ++e) step *= 2;
  return step;
}

constexpr Tables make_tables() {
  Tables t;
  for (std::size_t m = 0; m < 128; ++m) {
    const float value = e4m3_to_float(static_cast<std::uint8_t>(m));
    const std::uint16_t bits = bf16_from_float(value);
    t.bf16_low[m] = static_cast<std::uint8_t>(bits & 0xff);
    t.bf16_high[m] = static_cast<std::uint8_t>(bits >> 8);
    for (std::size_t e = m / 8; e < 16; ++e) {  // NaN has a place, and its product does not matter
      const float steps = value == value ? value / coarse_step(static_cast<int>(e)) : 0;
      t.coarse[e][m] = static_cast<std::uint8_t>((static_cast<int>(2 * steps) + 1) / 2);
    }
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

// The largest magnitude among the values of all rows, as a code.
SERINUS_AVX512 int largest_value(std::span<const std::uint8_t* const> rows) {
  __m512i top = _mm512_setzero_si512();
  for (const std::uint8_t* row : rows) {
    for (int k = 0; k < kDV; k += 64) {
      const __m512i signs = _mm512_set1_epi8(static_cast<char>(0x80));
      top = _mm512_max_epu8(top, _mm512_andnot_si512(signs, _mm512_loadu_si512(row + k)));
    }
  }
  alignas(64) std::array<std::uint8_t, 64> each;
  _mm512_store_si512(each.data(), top);
  return *std::ranges::max_element(each);
}

struct CoarseTable {
  __m512i low, high;
};

SERINUS_AVX512_INLINE CoarseTable coarse_table(int exponent) {
  const std::uint8_t* const steps = kTables.coarse[static_cast<std::size_t>(exponent)].data();
  return {_mm512_load_si512(steps), _mm512_load_si512(steps + 64)};
}

SERINUS_AVX512_INLINE __m512i to_coarse(const CoarseTable& t, __m512i codes) {
  const __m512i steps = _mm512_permutex2var_epi8(t.low, codes, t.high);
  const __m512i middle = _mm512_set1_epi8(static_cast<char>(0x80));
  return _mm512_mask_sub_epi8(_mm512_add_epi8(middle, steps), _mm512_movepi8_mask(codes), middle,
                              steps);
}

// Words: bytes of four rows, in columns as pair_up() has them.
SERINUS_AVX512_INLINE Interleaved join_four(__m512i a, __m512i b, __m512i c, __m512i d) {
  const Bf16Columns ab = {_mm512_unpacklo_epi8(a, b), _mm512_unpackhi_epi8(a, b)};
  const Bf16Columns cd = {_mm512_unpacklo_epi8(c, d), _mm512_unpackhi_epi8(c, d)};
  return pair_up(ab, cd);
}

SERINUS_AVX512 void load_rows(std::span<const std::uint8_t* const> rows, int d_qk, Block& block) {
  static constexpr std::array<std::uint8_t, kMaxDQk> kZeros{};
  const Bf16Table table = bf16_table();
  const bool low = block.coarse != nullptr;
  const int exponent = low ? largest_value(rows) / 8 : 0;
  const CoarseTable coarse = coarse_table(exponent);
  block.coarse_step = coarse_step(exponent);
  block.rows = static_cast<int>(rows.size());
  block.padded = (block.rows + 3) / 4 * 4;
  for (int n = 0; n < block.padded; n += 4) {
    const std::uint8_t* from[4];
    for (int i = 0; i < 4; ++i) {
      from[i] = n + i < block.rows ? rows[static_cast<std::size_t>(n + i)] : kZeros.data();
    }
    std::uint32_t* const key = block.keys + n * kKeyPitch;
    std::uint32_t* const value = block.values + n / 2 * kValuePitch;
    for (int k = 0; k < d_qk; k += 64) {
      __m512i codes[4];
      Bf16Columns columns[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        codes[i] = _mm512_loadu_si512(from[i] + k);
        columns[i] = to_bf16(table, codes[i]);
        _mm512_store_si512(key + i * kKeyPitch + k / 2, columns[i].first);
        _mm512_store_si512(key + i * kKeyPitch + k / 2 + 16, columns[i].second);
      }
      if (k >= kDV) continue;
      const auto store = [](std::uint32_t* to, const Interleaved& x) SERINUS_AVX512 {
        for (int i = 0; i < 4; ++i) _mm512_store_si512(to + 16 * i, x.at[i]);
      };
      store(value + k, pair_up(columns[0], columns[1]));
      store(value + kValuePitch + k, pair_up(columns[2], columns[3]));
      if (!low) continue;
      store(block.coarse + n / 4 * kValuePitch + k,
            join_four(to_coarse(coarse, codes[0]), to_coarse(coarse, codes[1]),
                      to_coarse(coarse, codes[2]), to_coarse(coarse, codes[3])));
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
                     .low = {},
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

// Bytes of four rows, side by side in each element.
SERINUS_AVX512_INLINE __m512i pack_bytes(const __m512i (&x)[4]) {
  const __m512i words = _mm512_packs_epi16(_mm512_packs_epi32(x[0], x[1]),  // row after row
                                           _mm512_packs_epi32(x[2], x[3]));
  const __m512i turn = _mm512_set4_epi32(0x0f0b0703, 0x0e0a0602, 0x0d090501, 0x0c080400);
  return _mm512_shuffle_epi8(words, turn);
}

// The weights, as one bf16 each or with what that leaves over.
template <bool kLow>
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
    // Rounding leaves 2^-8 of a weight at most, and none is larger than the first: 127 steps.
    const __m512 largest = exp2_nonpositive(_mm512_mul_ps(_mm512_sub_ps(block_top, top), f));
    const __m512 low_step = _mm512_mul_ps(largest, _mm512_set1_ps(1.0f / (256 * 127)));
    const __m512 steps = _mm512_div_ps(_mm512_set1_ps(1), low_step);
    __m512i low_sum = _mm512_setzero_si512();  // of 128 * low
    for (int n = 0; n < block.padded; n += 4) {
      __m512i high[4];
      [[maybe_unused]] __m512i low[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const __m512 score = _mm512_load_ps(scores + (n + i) * width + v);
        __m512 weight = exp2_nonpositive(_mm512_mul_ps(_mm512_sub_ps(score, top), f));
        if (n + i >= block.rows) weight = _mm512_setzero_ps();
        high[i] = round_to_bf16(weight);
        const __m512 rounded = _mm512_castsi512_ps(high[i]);
        sum = _mm512_add_ps(sum, kLow ? weight : rounded);
        if constexpr (kLow) {
          low[i] = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_sub_ps(weight, rounded), steps));
        }
      }
      std::uint32_t* const to = weights.high + n / 2 * width + v;
      _mm512_store_si512(to, _mm512_or_si512(_mm512_srli_epi32(high[0], 16), high[1]));
      _mm512_store_si512(to + width, _mm512_or_si512(_mm512_srli_epi32(high[2], 16), high[3]));
      if constexpr (kLow) {
        const __m512i bytes = pack_bytes(low);
        low_sum = _mm512_dpbusd_epi32(low_sum, _mm512_set1_epi8(static_cast<char>(0x80)), bytes);
        _mm512_store_si512(weights.low + n / 4 * width + v, bytes);
      }
    }
    if constexpr (kLow) {
      _mm512_store_ps(weights.low_step + v, low_step);
      _mm512_store_si512(weights.low_offset + v, _mm512_sub_epi32(_mm512_setzero_si512(), low_sum));
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
                      .low = {.a = block.coarse,
                              .b = weights.low,
                              .offset = weights.low_offset,
                              .step = weights.low_step,
                              .a_step = block.coarse_step},
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
                   __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni") &&
                   __builtin_cpu_supports("avx512bf16");
  return has ? &kPath : nullptr;
}

}  // namespace serinus::sparse_mla
