// The checks that every entry point makes at its door. Each raises through the error reference,
// with the argument's name and the offending value. None allocates unless it raises.
//
//   Shapes shapes;
//   shapes.bind("q", args.q, {"s_q", "h_q", "d_qk"});     // gives the three names their sizes
//   shapes.bind("kv", args.kv, {"s_kv", 1, "d_qk"});      // "kv d_qk must match q d_qk=576, got
//   512" shapes.expect("out", args.out, {"s_q", "h_q", 512});  // "out must have shape (4, 64,
//   512), got …" const std::int64_t s_q = shapes["s_q"];
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include <serinus/tensor.h>

namespace serinus {

/// How dtypes are spelled in a message.
enum class DTypeNames : std::uint8_t {
  plain,  ///< "float8_e4m3fn"
  torch,  ///< "torch.float8_e4m3fn", as the drop-ins print them
};

/// Printed as Python prints a tuple: "(2, 3)", "(5,)", "()".
std::string shape_string(const TensorView& tensor);
std::string shape_string(std::span<const std::int64_t> sizes);
/// "cpu", "cuda:1".
std::string device_string(Device device);
std::string dtype_string(DType dtype, DTypeNames names = DTypeNames::plain);

/// A size that a shape must have: a number, or a name that stands for the size it was bound to.
struct Dim {
  // NOLINTBEGIN(google-explicit-constructor): {"s_q", "h_q", 512} is the point.
  Dim(std::integral auto n) : size(static_cast<std::int64_t>(n)) {}
  Dim(const char* n) : name(n) {}
  // NOLINTEND(google-explicit-constructor)

  std::int64_t size = -1;
  std::string_view name;  ///< empty for a number
};

/// Sizes by name across the tensors of one call. Names and arguments must outlive it (literals).
class Shapes {
 public:
  /// Binds the names that are new to the tensor's sizes. A wrong rank or number is a wrong shape; a
  /// size that disagrees with what its name was bound to before says with which argument.
  void bind(std::string_view argument, const TensorView& tensor, std::initializer_list<Dim> want);
  /// The same, but every disagreement is a wrong shape, printed whole with the sizes bound so far.
  void expect(std::string_view argument, const TensorView& tensor, std::initializer_list<Dim> want);
  /// Binds a name to a size that no tensor gives. `argument` is who says so.
  void set(std::string_view name, std::int64_t size, std::string_view argument);
  /// The size of a name that was bound; anything else is an InternalError.
  std::int64_t operator[](std::string_view name) const;
  /// "(4096, 1, topk)": numbers and bound names as numbers, the others as their names.
  std::string wanted(std::initializer_list<Dim> want) const;

 private:
  struct Bound {
    std::string_view name, argument;
    std::int64_t size = 0;
  };
  const Bound* find(std::string_view name) const noexcept;
  void visit(std::string_view argument, const TensorView& tensor, std::initializer_list<Dim> want,
             bool whole);

  std::array<Bound, 16> bound_{};
  std::size_t count_ = 0;
};

/// Rank alone, `want` is printed as given: check_rank("q", q, 3, "(s_q, h_q, d_qk)"). Also refuses
/// negative sizes and sizes whose bytes no 64-bit offset reaches.
void check_rank(std::string_view argument, const TensorView& tensor, int rank,
                std::string_view want);
void check_dtype(std::string_view argument, const TensorView& tensor, DType want,
                 DTypeNames names = DTypeNames::plain);
void check_device(std::string_view argument, const TensorView& tensor, Device want);
/// As check_device, where the wanted device is that of another argument, which is named.
void check_same_device(std::string_view argument, const TensorView& tensor, std::string_view other,
                       Device want);
void check_cuda(std::string_view argument, const TensorView& tensor);
void check_contiguous(std::string_view argument, const TensorView& tensor);
/// Neighbours in the last dimension lie side by side; other strides are free.
void check_last_dim_contiguous(std::string_view argument, const TensorView& tensor);
/// The stride of dimension `dim` is a multiple of `bytes`. A dimension of size 1 or 0 passes.
void check_stride_multiple(std::string_view argument, const TensorView& tensor, int dim,
                           std::int64_t bytes);
/// The first byte lies at a multiple of `bytes`. An empty tensor passes.
void check_aligned(std::string_view argument, const TensorView& tensor, std::int64_t bytes);
/// Data is there, unless the tensor is empty.
void check_data(std::string_view argument, const TensorView& tensor);
/// Exactly one element, any rank.
void check_scalar(std::string_view argument, const TensorView& tensor);

/// Whether two tensors may share a byte: their extents (first to last byte reached) on one device
/// overlap. Empty tensors share nothing.
bool may_alias(const TensorView& a, const TensorView& b) noexcept;

}  // namespace serinus
