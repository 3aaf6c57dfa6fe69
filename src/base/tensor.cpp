#include <serinus/tensor.h>

namespace serinus {

const char* name_of(DType t) noexcept {
  switch (t) {
    case DType::u8:
      return "uint8";
    case DType::i32:
      return "int32";
    case DType::i64:
      return "int64";
    case DType::u32:
      return "uint32";
    case DType::u64:
      return "uint64";
    case DType::f32:
      return "float32";
    case DType::f64:
      return "float64";
    case DType::bf16:
      return "bfloat16";
    case DType::e4m3:
      return "float8_e4m3fn";
    case DType::boolean:
      return "bool";
    case DType::i8:
      return "int8";
    case DType::i16:
      return "int16";
    case DType::u16:
      return "uint16";
    case DType::f16:
      return "float16";
    case DType::e5m2:
      return "float8_e5m2";
    case DType::c64:
      return "complex64";
  }
  return "unknown";
}

namespace {

// Sizes come from outside: a product that 64 bits do not hold wraps here without harm, and the
// checks at the door refuse the view (SRN1013).
std::int64_t wrapping_product(std::int64_t a, std::int64_t b) noexcept {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
}

}  // namespace

TensorView::TensorView(void* d, DType t, std::span<const std::int64_t> dims, Device dev)
    : data(d), dtype(t), device(dev), rank(static_cast<int>(dims.size())) {
  std::int64_t dense = 1;
  for (std::size_t i = dims.size(); i-- > 0;) {
    if (i >= kMaxRank) continue;  // the rank check at the door reports it
    shape[i] = dims[i];
    strides[i] = dense;
    dense = wrapping_product(dense, dims[i]);
  }
}

TensorView::TensorView(void* d, DType t, std::initializer_list<std::int64_t> dims,
                       std::initializer_list<std::int64_t> steps, Device dev)
    : TensorView(d, t, dims, dev) {
  std::size_t i = 0;
  for (const std::int64_t s : steps) {
    if (i < kMaxRank) strides[i++] = s;
  }
}

std::int64_t TensorView::numel() const noexcept {
  std::int64_t n = 1;
  for (int i = 0; i < rank && i < kMaxRank; ++i) {
    n = wrapping_product(n, shape[static_cast<std::size_t>(i)]);
  }
  return n;
}

bool TensorView::is_contiguous() const noexcept {
  if (rank < 0 || rank > kMaxRank) return false;
  for (int i = 0; i < rank; ++i) {
    if (shape[static_cast<std::size_t>(i)] == 0) return true;
  }
  std::int64_t dense = 1;
  for (int i = rank - 1; i >= 0; --i) {
    const auto d = static_cast<std::size_t>(i);
    if (shape[d] != 1 && strides[d] != dense) return false;
    dense = wrapping_product(dense, shape[d]);
  }
  return true;
}

}  // namespace serinus
