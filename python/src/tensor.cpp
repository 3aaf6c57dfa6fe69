#include "tensor.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <array>
#include <string>
#include <unordered_map>

#include "base/checks.h"
#include "base/raise.h"

namespace serinus::python {

namespace {

using errors::Page;

constexpr std::array kDTypes = {DType::u8,   DType::i32,  DType::i64,     DType::u32,
                                DType::u64,  DType::f32,  DType::f64,     DType::bf16,
                                DType::e4m3, DType::i8,   DType::i16,     DType::u16,
                                DType::f16,  DType::e5m2, DType::boolean, DType::c64};

[[noreturn]] void raise_unknown_dtype(std::string_view name, std::string got) {
  raise(Page::python_dtype_unknown, {{"name", std::string(name)}, {"got", std::move(got)}});
}

[[noreturn]] void raise_unknown_device(std::string_view name, std::string got) {
  raise(Page::python_device_unknown, {{"name", std::string(name)}, {"got", std::move(got)}});
}

[[noreturn]] void raise_read_only(std::string_view name) {
  raise(Page::python_read_only, {{"name", std::string(name)}});
}

std::string str(nb::handle h) {
  return nb::cast<std::string>(nb::str(h));
}

[[noreturn]] void raise_no_tensor(std::string_view name, nb::handle got) {
  raise(Page::python_not_a_tensor,
        {{"name", std::string(name)}, {"got", str(got.type().attr("__name__"))}});
}

// "torch.float8_e4m3fn", "float8_e4m3fn".
DType dtype_named(std::string_view name, std::string_view text) {
  std::string_view bare = text;
  if (bare.starts_with("torch.")) bare.remove_prefix(6);
  for (const DType t : kDTypes) {
    if (bare == name_of(t)) return t;
  }
  raise_unknown_dtype(name, std::string(text));
}

// Modules that the program has imported; null for the others.
nb::handle imported(const char* module) {
  return PyDict_GetItemString(PyImport_GetModuleDict(), module);
}

void set_rank(std::string_view name, TensorView& view, std::size_t rank) {
  if (rank > TensorView::kMaxRank) {
    raise(Page::python_too_many_dimensions,
          {{"name", std::string(name)}, {"got", std::to_string(rank)}});
  }
  view.rank = static_cast<int>(rank);
}

// A stride in bytes as one in elements.
std::int64_t elements(std::string_view name, std::int64_t bytes, std::int64_t size) {
  if (size == 0 || bytes % size != 0) {
    raise(Page::python_stride, {{"name", std::string(name)},
                                {"got", std::to_string(bytes)},
                                {"size", std::to_string(size)}});
  }
  return bytes / size;
}

// Python hands over addresses as numbers.
void* address(nb::handle number) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  return reinterpret_cast<void*>(nb::cast<std::uintptr_t>(number));
}

std::int64_t integer(nb::handle sequence, std::size_t i) {
  return nb::cast<std::int64_t>(nb::object(sequence[i]));
}

// ---------------------------------------------------------------- torch

bool is_torch(nb::handle object) {
  const nb::handle torch = imported("torch");
  if (!torch.is_valid() || !nb::hasattr(torch, "Tensor")) return false;
  return PyObject_IsInstance(object.ptr(), torch.attr("Tensor").ptr()) == 1;
}

// torch's dtypes are objects that live as long as the process, so their addresses name them.
DType torch_dtype(std::string_view name, nb::handle dtype) {
  static auto& known = *new std::unordered_map<const PyObject*, DType>();  // under the GIL
  if (const auto it = known.find(dtype.ptr()); it != known.end()) return it->second;
  const DType t = dtype_named(name, str(dtype));
  dtype.inc_ref();
  known.emplace(dtype.ptr(), t);
  return t;
}

TensorView from_torch(std::string_view name, nb::handle tensor) {
  TensorView view;
  view.dtype = torch_dtype(name, tensor.attr("dtype"));
  const nb::object device = tensor.attr("device");
  const auto type = nb::cast<std::string>(device.attr("type"));
  if (type == "cuda") {
    view.device = {DeviceType::cuda, nb::cast<std::int32_t>(device.attr("index"))};
  } else if (type != "cpu") {
    raise_unknown_device(name, str(device));
  }
  const nb::object shape = tensor.attr("shape");
  const nb::object strides = tensor.attr("stride")();
  set_rank(name, view, nb::len(shape));
  for (std::size_t d = 0; d < static_cast<std::size_t>(view.rank); ++d) {
    view.shape[d] = integer(shape, d);
    view.strides[d] = integer(strides, d);
  }
  view.data = address(tensor.attr("data_ptr")());
  return view;
}

// ---------------------------------------------------------------- array interfaces

TensorView from_interface(std::string_view name, nb::handle object, nb::handle interface,
                          Device device, Access access) {
  TensorView view;
  view.device = device;
  const nb::object dtype = object.attr("dtype");
  if (!nb::cast<bool>(nb::getattr(dtype, "isnative", nb::bool_(true)))) {
    raise_unknown_dtype(name, str(dtype));
  }
  view.dtype = dtype_named(name, str(nb::getattr(dtype, "name", dtype)));
  const nb::object shape = interface["shape"];
  const nb::object data = interface["data"];
  if (access == Access::write && nb::cast<bool>(nb::object(data[1]))) raise_read_only(name);
  view.data = address(nb::object(data[0]));
  set_rank(name, view, nb::len(shape));
  const nb::object strides = interface.attr("get")("strides");
  std::int64_t dense = 1;
  for (auto d = static_cast<std::size_t>(view.rank); d-- > 0;) {
    view.shape[d] = integer(shape, d);
    view.strides[d] =
        strides.is_none() ? dense : elements(name, integer(strides, d), size_of(view.dtype));
    dense *= view.shape[d];
  }
  return view;
}

// ---------------------------------------------------------------- DLPack

constexpr std::uint8_t kDlInt = 0, kDlUint = 1, kDlFloat = 2, kDlBfloat = 4, kDlComplex = 5,
                       kDlBool = 6, kDlFloat8E4m3fn = 10, kDlFloat8E5m2 = 12;

DType dlpack_dtype(std::string_view name, nb::dlpack::dtype t) {
  struct Known {
    std::uint8_t code, bits;
    DType dtype;
  };
  static constexpr Known kKnown[] = {{kDlInt, 8, DType::i8},
                                     {kDlInt, 16, DType::i16},
                                     {kDlInt, 32, DType::i32},
                                     {kDlInt, 64, DType::i64},
                                     {kDlUint, 8, DType::u8},
                                     {kDlUint, 16, DType::u16},
                                     {kDlUint, 32, DType::u32},
                                     {kDlUint, 64, DType::u64},
                                     {kDlFloat, 16, DType::f16},
                                     {kDlFloat, 32, DType::f32},
                                     {kDlFloat, 64, DType::f64},
                                     {kDlBfloat, 16, DType::bf16},
                                     {kDlComplex, 64, DType::c64},
                                     {kDlBool, 8, DType::boolean},
                                     {kDlFloat8E4m3fn, 8, DType::e4m3},
                                     {kDlFloat8E5m2, 8, DType::e5m2}};
  for (const Known& k : kKnown) {
    if (k.code == t.code && k.bits == t.bits && t.lanes == 1) return k.dtype;
  }
  raise_unknown_dtype(name,
                      fmt::format("DLPack code {}, {} bits, {} lanes", t.code, t.bits, t.lanes));
}

template <class Array>
TensorView view_of_dlpack(std::string_view name, const Array& array) {
  TensorView view;
  view.dtype = dlpack_dtype(name, array.dtype());
  switch (array.device_type()) {
    case nb::device::cpu::value:
    case nb::device::cuda_host::value:
      break;
    case nb::device::cuda::value:
    case nb::device::cuda_managed::value:
      view.device = {DeviceType::cuda, array.device_id()};
      break;
    default:
      raise_unknown_device(name, "DLPack device type " + std::to_string(array.device_type()));
  }
  set_rank(name, view, array.ndim());
  for (std::size_t d = 0; d < array.ndim(); ++d) {
    view.shape[d] = static_cast<std::int64_t>(array.shape(d));
    view.strides[d] = array.stride(d);
  }
  view.data = const_cast<void*>(static_cast<const void*>(array.data()));
  return view;
}

template <class Array>
TensorView from_dlpack(std::string_view name, nb::handle object, Access access,
                       std::vector<nb::ndarray<nb::ro>>& owners) {
  Array array;
  if (!nb::try_cast<Array>(object, array)) {
    if (access == Access::write) raise_read_only(name);
    raise_no_tensor(name, object);
  }
  const TensorView view = view_of_dlpack(name, array);
  owners.emplace_back(array);
  return view;
}

// The GPU of an array that has no torch device: DLPack's way to ask, else the first.
std::int32_t gpu_of(nb::handle object) {
  if (!nb::hasattr(object, "__dlpack_device__")) return 0;
  return static_cast<std::int32_t>(integer(object.attr("__dlpack_device__")(), 1));
}

bool is_tensor(nb::handle object) {
  return is_torch(object) || nb::hasattr(object, "__array_interface__") ||
         nb::hasattr(object, "__cuda_array_interface__") || nb::hasattr(object, "__dlpack__");
}

}  // namespace

TensorView Tensors::take(std::string_view name, nb::handle object, Access access) {
  objects_.push_back(nb::borrow(object));
  return view_of(name, object, access);
}

TensorView Tensors::view_of(std::string_view name, nb::handle object, Access access) {
  if (is_torch(object)) return from_torch(name, object);
  if (nb::hasattr(object, "dtype")) {
    if (nb::hasattr(object, "__cuda_array_interface__")) {
      return from_interface(name, object, object.attr("__cuda_array_interface__"),
                            {DeviceType::cuda, gpu_of(object)}, access);
    }
    // jax offers this one too, by copying to the host: DLPack is its way without a copy.
    if (nb::hasattr(object, "__array_interface__") && nb::hasattr(object, "flags")) {
      return from_interface(name, object, object.attr("__array_interface__"), {}, access);
    }
  }
  if (nb::hasattr(object, "__dlpack__")) {
    if (access == Access::write) return from_dlpack<nb::ndarray<>>(name, object, access, owners_);
    return from_dlpack<nb::ndarray<nb::ro>>(name, object, access, owners_);
  }
  raise_no_tensor(name, object);
}

std::optional<TensorView> Tensors::take_optional(std::string_view name, nb::handle object,
                                                 Access access) {
  if (object.is_none()) return std::nullopt;
  return take(name, object, access);
}

TensorView Tensors::take_or_absent(std::string_view name, nb::handle object, Access access) {
  if (object.is_none() || !is_tensor(object)) return {};
  return take(name, object, access);
}

TensorView relabelled(TensorView view, DType from, DType to) noexcept {
  if (view.dtype == from) view.dtype = to;
  return view;
}

Stream stream_for(nb::handle stream, nb::handle like, Device device) {
  if (device.type != DeviceType::cuda) return {};
  const auto handle = [](nb::handle number) { return Stream{address(number)}; };
  if (!stream.is_none()) {
    for (const char* attribute : {"cuda_stream", "ptr"}) {  // torch, cupy
      if (nb::hasattr(stream, attribute)) return handle(stream.attr(attribute));
    }
    if (nb::hasattr(stream, "__cuda_stream__")) {
      return handle(nb::object(nb::object(stream.attr("__cuda_stream__")())[1]));
    }
    return handle(stream);
  }
  if (is_torch(like)) {
    return handle(
        imported("torch").attr("cuda").attr("current_stream")(device.index).attr("cuda_stream"));
  }
  if (const nb::handle cupy = imported("cupy");
      cupy.is_valid() && nb::hasattr(like, "__cuda_array_interface__")) {
    return handle(cupy.attr("cuda").attr("get_current_stream")().attr("ptr"));
  }
  return {};
}

}  // namespace serinus::python
