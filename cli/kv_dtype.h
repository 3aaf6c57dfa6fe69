// The option that names the dtype of an mha_* layout's elements.
#pragma once

#include <optional>

#include <serinus/tensor.h>

#include "cli/choice.h"

namespace serinus::cli {

inline CLI::Option* add_kv_dtype(CLI::App& cmd, std::optional<DType>& dtype) {
  return add_choice(cmd, "--dtype", dtype,
                    {{"bf16", DType::bf16},
                     {"bfloat16", DType::bf16},
                     {"e4m3", DType::e4m3},
                     {"fp8", DType::e4m3},
                     {"float8_e4m3fn", DType::e4m3},
                     {"f32", DType::f32},
                     {"float32", DType::f32},
                     {"u8", DType::u8},
                     {"uint8", DType::u8}},
                    "Type of the elements, for mha_*");
}

}  // namespace serinus::cli
