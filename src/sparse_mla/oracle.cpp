#include "sparse_mla/oracle.h"

#include <cmath>
#include <limits>

namespace serinus::oracle {

double e4m3_value(std::uint8_t code) {
  const int exponent = code / 8 % 16;
  const int mantissa = code % 8;
  const double sign = code >= 128 ? -1.0 : 1.0;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<double>::quiet_NaN();
  if (exponent == 0) return sign * mantissa / 8 * std::pow(2.0, -6);
  return sign * (1 + mantissa / 8.0) * std::pow(2.0, exponent - 7);
}

double bf16_value(std::uint16_t code) {
  const int exponent = code / 128 % 256;
  const int mantissa = code % 128;
  const double sign = code >= 32768 ? -1.0 : 1.0;
  if (exponent == 255) {
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * mantissa / 128 * std::pow(2.0, -126);
  return sign * (1 + mantissa / 128.0) * std::pow(2.0, exponent - 127);
}

Reference prefill(const SparseMlaPrefill& a) {
  const double inf = std::numeric_limits<double>::infinity();
  const std::int64_t s_q = a.q.shape[0];
  const std::int64_t h_q = a.q.shape[1];
  const std::int64_t d_qk = a.q.shape[2];
  const std::int64_t s_kv = a.kv.shape[0];
  const std::int64_t topk = a.indices.shape[2];
  const double q_scale = *a.q_scale.as<const float>();
  const double kv_scale = *a.kv_scale.as<const float>();
  std::vector<double> value(256);
  for (int code = 0; code < 256; ++code) {
    value[static_cast<std::size_t>(code)] = e4m3_value(static_cast<std::uint8_t>(code));
  }
  Reference r;
  for (std::int64_t t = 0; t < s_q; ++t) {
    std::vector<const std::uint8_t*> rows;
    for (std::int64_t j = 0; j < topk; ++j) {
      if (a.topk_length && j >= a.topk_length->as<const std::int32_t>()[t]) break;
      const std::int64_t row = a.indices.as<const std::int32_t>()[t * a.indices.strides[0] + j];
      if (row < 0 || row >= s_kv) continue;
      rows.push_back(a.kv.as<const std::uint8_t>() + row * a.kv.strides[0]);
    }
    const auto width = static_cast<std::size_t>(d_qk);
    std::vector<double> keys;  // the rows as numbers
    for (const std::uint8_t* row : rows) {
      for (std::size_t k = 0; k < width; ++k) keys.push_back(value[row[k]]);
    }
    std::vector<double> query(width);
    for (std::int64_t h = 0; h < h_q; ++h) {
      const std::uint8_t* q =
          a.q.as<const std::uint8_t>() + t * a.q.strides[0] + h * a.q.strides[1];
      std::vector<double> logits;
      double max_logit = -inf;
      for (std::size_t k = 0; k < width; ++k) query[k] = value[q[k]];
      for (std::size_t j = 0; j < rows.size(); ++j) {
        const double* const key = keys.data() + j * width;
        double dot = 0;
        for (std::size_t k = 0; k < width; ++k) dot += query.data()[k] * key[k];
        const double logit = static_cast<double>(a.sm_scale) * q_scale * kv_scale * dot;
        logits.push_back(logit);
        max_logit = std::isnan(logit) || std::isnan(max_logit)
                        ? std::numeric_limits<double>::quiet_NaN()
                        : std::fmax(max_logit, logit);
      }
      double sum = 0;
      std::vector<double> out(512, 0.0);
      for (std::size_t j = 0; j < rows.size(); ++j) {
        const double weight = std::exp(logits[j] - max_logit);
        sum += weight;
        const double* const key = keys.data() + j * width;
        for (std::size_t c = 0; c < 512; ++c) out.data()[c] += weight * key[c];
      }
      const double lse = max_logit + std::log(sum);
      double factor = rows.empty() ? 0.0 : kv_scale / sum;
      if (a.attn_sink) {
        const double sink = a.attn_sink->as<const float>()[h];
        factor *= rows.empty() ? (std::isnan(sink) ? sink : 1.0) : 1 / (1 + std::exp(sink - lse));
      }
      for (double& o : out) o *= factor;
      r.out.insert(r.out.end(), out.begin(), out.end());
      r.max_logits.push_back(max_logit);
      const double empty = a.empty_row_lse == EmptyRowLse::plus_inf ? inf : -inf;
      r.lse.push_back(rows.empty() ? empty : lse);
    }
  }
  return r;
}

double relative_error(const std::vector<double>& x, const std::vector<double>& reference) {
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    difference += (x[i] - reference[i]) * (x[i] - reference[i]);
    norm += reference[i] * reference[i];
  }
  return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}

}  // namespace serinus::oracle
