// One kernel a head dimension and number of heads; each is compiled in a file of instantiations/.
#pragma once

#include <serinus/tensor.h>

#include "sparse_mla/sm90/params.h"

namespace serinus::sparse_mla::sm90 {

template <int kDQK, int kHeads>
void launch(const KernelParams& k, const Plan& plan, Stream stream);

/// Partial results of splits to outputs, in a fixed order.
void launch_merge(const KernelParams& k, const Plan& plan, Stream stream);

}  // namespace serinus::sparse_mla::sm90
