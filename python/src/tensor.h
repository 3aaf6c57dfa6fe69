// Views of the tensors that Python hands over: torch, numpy, cupy, jax, anything with
// __cuda_array_interface__ or __dlpack__. Nothing is copied, and no framework is imported that the
// program has not imported itself.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <optional>
#include <string_view>
#include <vector>

#include <serinus/tensor.h>

namespace serinus::python {

namespace nb = nanobind;

/// What a call does with a tensor.
enum class Access : std::uint8_t { read, write };

/// The tensors of one call. It owns what DLPack hands over, and a reference to every object: a list
/// or a property may have made it for this call alone, and another thread may let go of it. So it
/// must live as long as the call, and die with the interpreter's lock held.
class Tensors {
 public:
  /// Raises TypeError for what is no tensor, and for a dtype or device without a name in Serinus;
  /// ValueError for strides that are no whole elements, and for a read-only tensor to be written.
  TensorView take(std::string_view name, nb::handle object, Access access = Access::read);
  /// None is nullopt.
  std::optional<TensorView> take_optional(std::string_view name, nb::handle object,
                                          Access access = Access::read);
  /// None and what is no tensor at all become an empty view, which the doors know as "not given".
  TensorView take_or_absent(std::string_view name, nb::handle object, Access access = Access::read);

 private:
  TensorView view_of(std::string_view name, nb::handle object, Access access);

  std::vector<nb::object> objects_;
  std::vector<nb::ndarray<nb::ro>> owners_;
};

/// FP8 crosses as uint8 where a framework has no float8, bfloat16 as uint16.
TensorView relabelled(TensorView view, DType from, DType to) noexcept;

/// The stream to run in: `stream` where the caller names one (an int, or what torch, cupy or
/// __cuda_stream__ offer), else the current one of the framework that `like` belongs to. CPU calls
/// have none.
Stream stream_for(nb::handle stream, nb::handle like, Device device);

}  // namespace serinus::python
