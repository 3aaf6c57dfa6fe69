// The sglang format on the GPU: what check.cpp has checked, launched. Stream-ordered, capturable:
// grids follow from sizes that the host knows, every count is read on the device.
#pragma once

#include <cstdint>

#include <serinus/tensor.h>

#include "canary/sglang/params.h"

namespace serinus::canary::sglang::cuda {

void plan(const PlanParams& p, Device device, Stream stream);
void translate(const std::int64_t* slots, std::int64_t count, const std::int64_t* mapping,
               std::int64_t mapping_size, std::int64_t* out, Device device, Stream stream);
void scatter(const ScatterParams& p, Device device, Stream stream);
void verify(const VerifyParams& p, Device device, Stream stream);
void write(const WriteParams& p, Device device, Stream stream);

}  // namespace serinus::canary::sglang::cuda
