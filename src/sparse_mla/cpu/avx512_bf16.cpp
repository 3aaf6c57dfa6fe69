// The path for CPUs with bf16 dot products (AVX512-BF16, with VNNI and VBMI: Zen 4, Sapphire Rapids
// and later), where a dot product of bf16 pairs does twice the work of a float32 multiply-add.
//
// e4m3 values are exact in bf16, so q·k loses nothing. A weight is not: it is split into a bf16
// part and what that leaves over, at most 2^-8 of the block's largest weight, which goes as uint8
// against int8 values through the integer dot product, at half the cost of another bf16 one. Both
// add up in float32: weights keep 16 bits. docs/design/sparse_mla_cpu.md has the error bound.
//
// Highway 1.0 has no such target, hence intrinsics; nothing here may be called unless
// avx512_bf16_path() is not null.
#include <immintrin.h>

#include <algorithm>
#include <bit>

#include "base/dtypes.h"
#include "sparse_mla/cpu/kernels.h"

#define SERINUS_AVX512 \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")))
#define SERINUS_AVX512_INLINE SERINUS_AVX512 __attribute__((always_inline)) inline

namespace serinus::sparse_mla {

namespace {

constexpr int kLanes = 16;
constexpr int kTileRows = 6;  // 24 accumulators, 4 vectors of heads, 1 broadcast: 29 of 32

// ---------------------------------------------------------------- matrix products

// As in the float32 path, but that a step is a pair of bf16 or a quad of int8.
struct Operands {
  const std::uint32_t* a;
  std::ptrdiff_t a_row, a_step;
  const std::uint32_t* b;
  int steps;
  bool fresh;
  const float* decay;            // floats: null, or what c is multiplied with before
  const std::int32_t* subtract;  // integers: [rows] what every sum starts below 0
  const float* unit;             // integers: [width] what a step counts in c
  float* c;
};

template <int kRows, int kVectors>
SERINUS_AVX512_INLINE void multiply_bf16(const Operands& o, int at) {
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
  for (int s = 0; s < o.steps; ++s) {
    __m512i row[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) row[v] = _mm512_load_si512(b + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const __m512i x = _mm512_set1_epi32(static_cast<int>(a[r * o.a_row]));
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        sum[r][v] = _mm512_dpbf16_ps(sum[r][v], (__m512bh)row[v], (__m512bh)x);
      }
    }
    a += o.a_step;
    b += kWidth;
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) _mm512_store_ps(c + r * kWidth + v * kLanes, sum[r][v]);
  }
}

template <int kRows, int kVectors>
SERINUS_AVX512_INLINE void multiply_int8(const Operands& o, int at) {
  constexpr int kWidth = kVectors * kLanes;
  float* const c = o.c + at * kWidth;
  __m512i sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sum[r][v] = _mm512_set1_epi32(-o.subtract[at + r]);
  }
  const std::uint32_t* a = o.a + at * o.a_row;
  const std::uint32_t* b = o.b;
  for (int s = 0; s < o.steps; ++s) {
    __m512i row[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) row[v] = _mm512_load_si512(b + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const __m512i x = _mm512_set1_epi32(static_cast<int>(a[r * o.a_row]));
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sum[r][v] = _mm512_dpbusd_epi32(sum[r][v], row[v], x);
    }
    a += o.a_step;
    b += kWidth;
  }
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    const __m512 unit = _mm512_load_ps(o.unit + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      float* const to = c + r * kWidth + v * kLanes;
      _mm512_store_ps(to, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[r][v]), unit, _mm512_load_ps(to)));
    }
  }
}

template <int kVectors, bool kInt8>
SERINUS_AVX512 void multiply_width(const Operands& o, int rows) {
  int r = 0;
  for (; r + kTileRows <= rows; r += kTileRows) {
    if constexpr (kInt8) {
      multiply_int8<kTileRows, kVectors>(o, r);
    } else {
      multiply_bf16<kTileRows, kVectors>(o, r);
    }
  }
  for (; r + 2 <= rows; r += 2) {
    if constexpr (kInt8) {
      multiply_int8<2, kVectors>(o, r);
    } else {
      multiply_bf16<2, kVectors>(o, r);
    }
  }
}

// `rows` is even.
template <bool kInt8>
void multiply(const Operands& o, int rows, int width) {
  switch (width / kLanes) {
    case 1:
      return multiply_width<1, kInt8>(o, rows);
    case 2:
      return multiply_width<2, kInt8>(o, rows);
    case 3:
      return multiply_width<3, kInt8>(o, rows);
    default:
      return multiply_width<4, kInt8>(o, rows);
  }
}

// ---------------------------------------------------------------- e4m3 by table

// By magnitude, the lower 7 bits of an e4m3 code.
struct Tables {
  alignas(64) std::array<std::uint8_t, 128> bf16_low{}, bf16_high{};
  // [exponent of the block's largest value]: the value in units of coarse_unit(exponent).
  alignas(64) std::array<std::array<std::int8_t, 128>, 16> coarse{};
};

// The largest value with this exponent, 1.875 * 2^(e-7), is 120 of these units.
constexpr float coarse_unit(int exponent) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(exponent - 7 - 6 + 127) << 23);
}

constexpr Tables make_tables() {
  Tables t;
  for (std::size_t m = 0; m < 128; ++m) {
    const float value = e4m3_to_float(static_cast<std::uint8_t>(m));
    const std::uint16_t bits = bf16_from_float(value);
    t.bf16_low[m] = static_cast<std::uint8_t>(bits & 0xff);
    t.bf16_high[m] = static_cast<std::uint8_t>(bits >> 8);
    for (std::size_t e = 0; e < 16; ++e) {
      if (m / 8 > e || m == 0x7f) continue;  // not in such a block; NaN shows in the bf16 part
      t.coarse[e][m] = static_cast<std::int8_t>(value / coarse_unit(static_cast<int>(e)) + 0.5f);
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

SERINUS_AVX512_INLINE int largest_exponent(std::span<const std::uint8_t* const> rows) {
  const __m512i magnitude = _mm512_set1_epi8(0x7f);
  __m512i top = _mm512_setzero_si512();
  for (const std::uint8_t* row : rows) {
    for (int c = 0; c < kDV; c += 64) {
      const __m512i m = _mm512_and_si512(_mm512_loadu_si512(row + c), magnitude);
      top = _mm512_max_epu8(top, _mm512_maskz_mov_epi8(_mm512_cmpneq_epi8_mask(m, magnitude), m));
    }
  }
  alignas(64) std::uint8_t each[64];
  _mm512_store_si512(each, top);
  return *std::max_element(each, each + 64) >> 3;
}

SERINUS_AVX512_INLINE __m512i to_coarse(__m512i table0, __m512i table1, __m512i codes) {
  const __m512i magnitude = _mm512_permutex2var_epi8(table0, codes, table1);
  return _mm512_mask_sub_epi8(magnitude, _mm512_movepi8_mask(codes), _mm512_setzero_si512(),
                              magnitude);
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
  const auto count = static_cast<int>(rows.size());
  block.rows = count;
  block.padded = (count + 3) / 4 * 4;
  const int exponent = largest_exponent(rows);
  block.coarse_unit = coarse_unit(exponent);
  const auto& coarse_table = kTables.coarse[static_cast<std::size_t>(exponent)];
  const __m512i coarse0 = _mm512_load_si512(coarse_table.data());
  const __m512i coarse1 = _mm512_load_si512(coarse_table.data() + 64);
  const Bf16Table table = bf16_table();
  const __m512i offset = _mm512_set1_epi8(static_cast<char>(0x80));  // 128, see weigh()

  for (int k = 0; k < d_qk; k += 64) {
    __m512i offset_sum[4] = {};
    for (int n = 0; n < block.padded; n += 4) {
      Bf16Columns columns[4];
      __m512i codes[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const std::uint8_t* row =
            n + i < count ? rows[static_cast<std::size_t>(n + i)] : kZeros.data();
        codes[i] = _mm512_loadu_si512(row + k);
        columns[i] = to_bf16(table, codes[i]);
        std::uint32_t* const to = block.keys + (n + i) * kKeyPitch + k / 2;
        _mm512_store_si512(to, columns[i].first);
        _mm512_store_si512(to + 16, columns[i].second);
      }
      if (k >= kDV) continue;
      const Interleaved pair01 = pair_up(columns[0], columns[1]);
      const Interleaved pair23 = pair_up(columns[2], columns[3]);
      std::uint32_t* const fine = block.values + n / 2 * kValuePitch + k;
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        _mm512_store_si512(fine + 16 * i, pair01.at[i]);
        _mm512_store_si512(fine + kValuePitch + 16 * i, pair23.at[i]);
        codes[i] = to_coarse(coarse0, coarse1, codes[i]);
      }
      const Interleaved quads = pair_up(
          {_mm512_unpacklo_epi8(codes[0], codes[1]), _mm512_unpackhi_epi8(codes[0], codes[1])},
          {_mm512_unpacklo_epi8(codes[2], codes[3]), _mm512_unpackhi_epi8(codes[2], codes[3])});
      std::uint32_t* const coarse = block.coarse + n / 4 * kValuePitch + k;
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        _mm512_store_si512(coarse + 16 * i, quads.at[i]);
        offset_sum[i] = _mm512_dpbusd_epi32(offset_sum[i], offset, quads.at[i]);
      }
    }
    if (k >= kDV) continue;
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) _mm512_store_si512(block.coarse_sum + k + 16 * i, offset_sum[i]);
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
                     .steps = std::min(kSteps, steps - k),
                     .fresh = k == 0,
                     .decay = nullptr,
                     .subtract = nullptr,
                     .unit = nullptr,
                     .c = scores},
                    block.padded, group.width);
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

// Rounds to bf16 (to nearest, ties to even), left in the upper half of each element. Weights are in
// [0, 1], or NaN, which the rounding leaves a NaN: exp2 makes quiet ones with few payload bits.
SERINUS_AVX512_INLINE __m512i round_to_bf16(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i up = _mm512_add_epi32(_mm512_set1_epi32(0x7fff), odd);
  return _mm512_and_si512(_mm512_add_epi32(bits, up),
                          _mm512_set1_epi32(static_cast<int>(0xffff0000u)));
}

SERINUS_AVX512 void weigh(const Block& block, float factor, const float* scores, Group& group,
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
    // What rounding to bf16 leaves over is at most 2^-8 of a weight: 127 units either way.
    const __m512 largest =
        _mm512_max_ps(_mm512_set1_ps(0x1p-100f),
                      exp2_nonpositive(_mm512_mul_ps(_mm512_sub_ps(block_top, top), f)));
    const __m512 units = _mm512_div_ps(_mm512_set1_ps(127.0f * 256.0f), largest);
    _mm512_store_ps(weights.coarse_unit + v,
                    _mm512_div_ps(_mm512_set1_ps(block.coarse_unit), units));
    for (int n = 0; n < block.padded; n += 4) {
      __m512i quad = _mm512_setzero_si512();
      __m512i fine[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const __m512 score = _mm512_load_ps(scores + (n + i) * width + v);
        __m512 weight = exp2_nonpositive(_mm512_mul_ps(_mm512_sub_ps(score, top), f));
        if (n + i >= block.rows) weight = _mm512_setzero_ps();
        sum = _mm512_add_ps(sum, weight);
        fine[i] = round_to_bf16(weight);
        const __m512 left = _mm512_sub_ps(weight, _mm512_castsi512_ps(fine[i]));
        // The integer product takes unsigned weights: 128 more, which load_rows() has summed up.
        const __m512i coarse = _mm512_add_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(left, units)),
                                                _mm512_set1_epi32(128));
        const __m512i byte = _mm512_and_si512(coarse, _mm512_set1_epi32(0xff));
        quad = _mm512_or_si512(quad, _mm512_slli_epi32(byte, static_cast<unsigned>(8 * i)));
      }
      std::uint32_t* const to = weights.fine + n / 2 * width + v;
      _mm512_store_si512(to, _mm512_or_si512(_mm512_srli_epi32(fine[0], 16), fine[1]));
      _mm512_store_si512(to + width, _mm512_or_si512(_mm512_srli_epi32(fine[2], 16), fine[3]));
      _mm512_store_si512(weights.coarse + n / 4 * width + v, quad);
    }
    _mm512_store_ps(group.max_score + v, top);
    _mm512_store_ps(group.sum + v, sum);
  }
}

void accumulate(const Block& block, const Weights& weights, Group& group) {
  multiply<false>({.a = block.values,
                   .a_row = 1,
                   .a_step = kValuePitch,
                   .b = weights.fine,
                   .steps = block.padded / 2,
                   .fresh = !group.started,
                   .decay = group.started ? group.decay : nullptr,
                   .subtract = nullptr,
                   .unit = nullptr,
                   .c = group.accumulated},
                  kDV, group.width);
  multiply<true>({.a = block.coarse,
                  .a_row = 1,
                  .a_step = kValuePitch,
                  .b = weights.coarse,
                  .steps = block.padded / 4,
                  .fresh = false,
                  .decay = nullptr,
                  .subtract = block.coarse_sum,
                  .unit = weights.coarse_unit,
                  .c = group.accumulated},
                 kDV, group.width);
}

void finish(const Group& group, const float* factor, std::uint16_t* out) {
  for (int h = 0; h < group.heads; ++h) {
    for (int at = 0; at < kDV; ++at) {
      out[h * kDV + column_of(at)] =
          bf16_from_float(group.accumulated[at * group.width + h] * factor[h]);
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
