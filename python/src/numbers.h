// Lists of numbers from Python: int64 tensors are looked at in place, anything else that holds ints
// is copied.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/checks.h"
#include "base/raise.h"
#include "tensor.h"

namespace serinus::python {

/// Keeps what a span looks at.
class Numbers {
 public:
  enum Where : std::uint8_t { on_cpu, anywhere };

  /// A one-dimensional int64 tensor, on the CPU or `anywhere`, or a sequence of ints. None is
  /// empty.
  Numbers(std::string_view name, nb::handle object, Where where = on_cpu) {
    if (object.is_none()) return;
    if (nb::isinstance<nb::list>(object) || nb::isinstance<nb::tuple>(object) ||
        PyRange_Check(object.ptr())) {
      if (!nb::try_cast(nb::list(object), own_)) {
        raise(errors::Page::python_not_integers,
              {{"name", std::string(name)}, {"got", nb::cast<std::string>(nb::repr(object))}});
      }
      span_ = own_;
      return;
    }
    const TensorView view = tensors_.take(name, object);
    if (where == on_cpu) check_device(name, view, {});
    check_rank(name, view, 1, "(n,)");
    check_dtype(name, view, DType::i64);
    check_contiguous(name, view);
    device_ = view.device;
    span_ = {view.as<const std::int64_t>(), static_cast<std::size_t>(view.shape[0])};
  }
  Numbers(const Numbers&) = delete;
  Numbers& operator=(const Numbers&) = delete;

  /// Valid as long as this object.
  std::span<const std::int64_t> span() const noexcept { return span_; }
  Device device() const noexcept { return device_; }

 private:
  Tensors tensors_;
  std::vector<std::int64_t> own_;
  std::span<const std::int64_t> span_;
  Device device_{};
};

/// One integer; TypeError for anything else, and for one that T does not hold.
template <class T = std::int64_t>
T number_in(std::string_view name, nb::handle object) {
  std::int64_t n = 0;
  if (!nb::try_cast(object, n) || !std::in_range<T>(n)) {
    raise(errors::Page::python_not_integers,
          {{"name", std::string(name)}, {"got", nb::cast<std::string>(nb::repr(object))}});
  }
  return static_cast<T>(n);
}

/// A word as text, whatever it is: what takes words says which it knows.
inline std::string text_in(nb::handle object) {
  return nb::cast<std::string>(nb::str(object));
}

/// Raises serinus.ValueError where two things that belong together differ in length.
inline void check_entries(const char* name, std::size_t got, const char* as, std::size_t want) {
  if (got == want) return;
  raise(errors::Page::canary_lengths_differ,
        {{"name", name}, {"got", std::to_string(got)}, {"as", as}, {"want", std::to_string(want)}});
}

/// Numbers of a smaller type, copied: owners, pools.
template <class T>
void narrow(std::string_view name, nb::handle object, std::vector<T>& out) {
  const Numbers numbers(name, object);
  out.reserve(numbers.span().size());
  for (const std::int64_t n : numbers.span()) {
    if (!std::in_range<T>(n)) {
      raise(errors::Page::python_not_integers,
            {{"name", std::string(name)}, {"got", std::to_string(n) + ", which is out of range"}});
    }
    out.push_back(static_cast<T>(n));
  }
}

}  // namespace serinus::python
