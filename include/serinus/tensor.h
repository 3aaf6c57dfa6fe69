// Non-owning views of tensors: what every entry point takes. The fields are DLPack's, so a view
// costs nothing to make from any framework's tensor; no copy is ever made.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>

namespace serinus {

enum class DType : std::uint8_t {
  u8,
  i32,
  i64,
  u32,
  u64,
  f32,
  f64,
  bf16,
  e4m3,
  // No call computes with these: they are here so that a pool may hold them and a message can name
  // them.
  boolean,
  i8,
  i16,
  u16,
  f16,
  e5m2,
  c64,
};

/// Bytes of one element.
constexpr std::int64_t size_of(DType t) noexcept {
  switch (t) {
    case DType::u8:
    case DType::e4m3:
    case DType::boolean:
    case DType::i8:
    case DType::e5m2:
      return 1;
    case DType::bf16:
    case DType::i16:
    case DType::u16:
    case DType::f16:
      return 2;
    case DType::i32:
    case DType::u32:
    case DType::f32:
      return 4;
    case DType::i64:
    case DType::u64:
    case DType::f64:
    case DType::c64:
      return 8;
  }
  return 0;
}

/// Name as users write it: "float8_e4m3fn", "bfloat16", "int32". Static storage.
const char* name_of(DType t) noexcept;

enum class DeviceType : std::uint8_t { cpu = 1, cuda = 2 };  // DLPack's codes

struct Device {
  DeviceType type = DeviceType::cpu;
  std::int32_t index = 0;
  friend bool operator==(const Device&, const Device&) = default;
};

/// A view of memory that somebody else owns and keeps alive. Strides count elements, as in DLPack.
struct TensorView {
  static constexpr int kMaxRank = 6;

  void* data = nullptr;
  DType dtype = DType::u8;
  Device device{};
  int rank = 0;
  std::array<std::int64_t, kMaxRank> shape{};
  std::array<std::int64_t, kMaxRank> strides{};

  TensorView() = default;
  /// A dense row-major view.
  TensorView(void* data, DType dtype, std::span<const std::int64_t> shape, Device device = {});
  TensorView(void* data, DType dtype, std::initializer_list<std::int64_t> shape, Device device = {})
      : TensorView(data, dtype, std::span(shape.begin(), shape.size()), device) {}
  /// A strided view; `strides` in elements, one per dimension.
  TensorView(void* data, DType dtype, std::initializer_list<std::int64_t> shape,
             std::initializer_list<std::int64_t> strides, Device device = {});

  /// Number of elements; 0 if a dimension is 0, 1 for rank 0.
  std::int64_t numel() const noexcept;
  /// Row-major without gaps. Dimensions of size 1 may carry any stride, an empty tensor is
  /// contiguous.
  bool is_contiguous() const noexcept;

  template <class T>
  T* as() const noexcept {
    return static_cast<T*>(data);
  }

  /// From anything shaped like DLPack's DLTensor (any version of dlpack.h; none is needed here).
  /// `dtype` is given by the caller, who knows what its framework calls float8.
  template <class DLTensorLike>
  static TensorView from_dlpack(const DLTensorLike& t, DType dtype);
};

template <class DLTensorLike>
TensorView TensorView::from_dlpack(const DLTensorLike& t, DType dtype) {
  TensorView v;
  v.data = static_cast<std::byte*>(static_cast<void*>(t.data)) + t.byte_offset;
  v.dtype = dtype;
  v.device = {static_cast<DeviceType>(t.device.device_type),
              static_cast<std::int32_t>(t.device.device_id)};
  v.rank = static_cast<int>(t.ndim);
  std::int64_t dense = 1;
  for (int i = v.rank - 1; i >= 0 && v.rank <= kMaxRank; --i) {
    const auto d = static_cast<std::size_t>(i);
    v.shape[d] = t.shape[d];
    v.strides[d] = t.strides != nullptr ? t.strides[d] : dense;
    // Wraps for sizes that no memory holds; the checks at the door refuse those.
    dense = static_cast<std::int64_t>(static_cast<std::uint64_t>(dense) *
                                      static_cast<std::uint64_t>(v.shape[d]));
  }
  return v;
}

/// A CUDA stream (cudaStream_t) without CUDA's header; null is the default stream. CPU calls ignore
/// it.
struct Stream {
  void* handle = nullptr;
};

}  // namespace serinus
