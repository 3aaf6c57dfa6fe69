// Tensors in files: .npy (one) and .safetensors (many, by name). Everything in a file is hostile:
// nothing is allocated or read by a number that the file's own size does not back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <serinus/tensor.h>

namespace serinus::cli {

/// A dense row-major tensor that owns its memory, aligned to 64 bytes.
class Tensor {
 public:
  Tensor(std::string name, DType dtype, std::vector<std::int64_t> shape,
         std::span<const std::uint8_t> bytes);
  /// Zeros. The sizes' product must be one that memory can hold.
  Tensor(std::string name, DType dtype, std::vector<std::int64_t> shape);

  const std::string& name() const noexcept { return name_; }
  DType dtype() const noexcept { return dtype_; }
  const std::vector<std::int64_t>& shape() const noexcept { return shape_; }
  std::span<const std::uint8_t> bytes() const noexcept { return {data_.get(), size_}; }
  TensorView view() const;
  template <class T>
  T* as() const noexcept {
    return reinterpret_cast<T*>(data_.get());
  }

 private:
  struct Free {
    void operator()(std::uint8_t* p) const noexcept;
  };
  std::string name_;
  DType dtype_;
  std::vector<std::int64_t> shape_;
  std::size_t size_ = 0;
  std::unique_ptr<std::uint8_t[], Free> data_;
};

/// .npy of uint8, uint16 (which is bfloat16), int32, int64, float32 or float64, little-endian, in C
/// order. `file` names it in errors (InputError).
Tensor parse_npy(std::span<const std::uint8_t> bytes, std::string_view file);
/// .safetensors whose tensors are F8_E4M3, BF16, U8, I32, I64, F32 or F64.
std::vector<Tensor> parse_safetensors(std::span<const std::uint8_t> bytes, std::string_view file);

Tensor read_npy(const std::string& path);
std::vector<Tensor> read_safetensors(const std::string& path);

/// Written beside their place and renamed: a full disk leaves nothing that looks whole.
/// float8_e4m3fn becomes uint8 and bfloat16 uint16, as numpy has neither.
void write_npy(const std::string& path, const Tensor& tensor);
void write_safetensors(const std::string& path, std::span<const Tensor* const> tensors);

}  // namespace serinus::cli
