// The sparse MLA prefill as its definition says, in float64 and without a single trick: what tests
// and `serinus attend --check` compare every backend with. Shares no code with them but the
// argument struct. CPU tensors that passed the door.
#pragma once

#include <cstdint>
#include <vector>

#include <serinus/sparse_mla.h>

namespace serinus::oracle {

struct Reference {
  std::vector<double> out;              // [s_q, h_q, 512]
  std::vector<double> max_logits, lse;  // [s_q, h_q]
};

/// The value of an e4m3 code, digit by digit.
double e4m3_value(std::uint8_t code);
double bf16_value(std::uint16_t code);

Reference prefill(const SparseMlaPrefill& args);

/// |x - reference| in the Frobenius norm, relative to the reference's. Both must be finite.
double relative_error(const std::vector<double>& x, const std::vector<double>& reference);

}  // namespace serinus::oracle
