#include "base/checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/raise.h"

namespace serinus {

namespace {

std::span<const std::int64_t> sizes_of(const TensorView& t) {
  return std::span(t.shape).first(
      static_cast<std::size_t>(std::clamp(t.rank, 0, TensorView::kMaxRank)));
}

std::string tuple(std::span<const std::string> items) {
  return fmt::format("({}{})", fmt::join(items, ", "), items.size() == 1 ? "," : "");
}

// a * b, or false where 64 bits do not hold it.
bool multiply(std::int64_t a, std::int64_t b, std::int64_t& out) {
  return !__builtin_mul_overflow(a, b, &out);
}

// Bytes from data to the first byte reached and past the last one; false where 64 bits do not hold
// it or a size is negative. Empty tensors reach nothing.
bool extent(const TensorView& t, std::int64_t& first, std::int64_t& last) {
  std::int64_t low = 0;
  std::int64_t high = 1;  // elements
  bool empty = false;
  for (std::size_t d = 0; d < sizes_of(t).size(); ++d) {
    if (t.shape[d] < 0) return false;
    empty |= t.shape[d] == 0;
  }
  if (empty) {
    first = last = 0;
    return true;
  }
  for (std::size_t d = 0; d < sizes_of(t).size(); ++d) {
    std::int64_t reach = 0;
    if (!multiply(t.shape[d] - 1, t.strides[d], reach)) return false;
    std::int64_t& end = reach < 0 ? low : high;
    if (__builtin_add_overflow(end, reach, &end)) return false;
  }
  return multiply(low, size_of(t.dtype), first) && multiply(high, size_of(t.dtype), last);
}

bool sizes_possible(const TensorView& t) {
  if (t.rank < 0 || t.rank > TensorView::kMaxRank) return false;
  std::int64_t bytes = size_of(t.dtype);
  bool overflow = false;
  bool empty = false;
  for (const std::int64_t n : sizes_of(t)) {
    if (n < 0) return false;
    if (n == 0)
      empty = true;
    else
      overflow |= !multiply(bytes, n, bytes);
  }
  std::int64_t first = 0;
  std::int64_t last = 0;
  return empty || (!overflow && extent(t, first, last));
}

void check_sizes(std::string_view argument, const TensorView& t) {
  if (!sizes_possible(t)) {
    raise(errors::Page::impossible_size,
          {{"name", std::string(argument)}, {"got", shape_string(t)}});
  }
}

[[noreturn]] void raise_wrong_shape(std::string_view argument, std::string want,
                                    const TensorView& t) {
  raise(errors::Page::wrong_shape,
        {{"name", std::string(argument)}, {"want", std::move(want)}, {"got", shape_string(t)}});
}

}  // namespace

std::string shape_string(std::span<const std::int64_t> sizes) {
  std::vector<std::string> items;
  for (const std::int64_t n : sizes) items.push_back(std::to_string(n));
  return tuple(items);
}

std::string shape_string(const TensorView& t) {
  if (t.rank < 0 || t.rank > TensorView::kMaxRank) {
    return fmt::format("{} dimensions, at most {} are possible", t.rank, TensorView::kMaxRank);
  }
  return shape_string(sizes_of(t));
}

std::string device_string(Device d) {
  switch (d.type) {
    case DeviceType::cpu:
      return "cpu";
    case DeviceType::cuda:
      return fmt::format("cuda:{}", d.index);
  }
  return fmt::format("device type {}", static_cast<int>(d.type));
}

std::string dtype_string(DType t, DTypeNames names) {
  return fmt::format("{}{}", names == DTypeNames::torch ? "torch." : "", name_of(t));
}

const Shapes::Bound* Shapes::find(std::string_view name) const noexcept {
  for (std::size_t i = 0; i < count_; ++i) {
    if (bound_[i].name == name) return &bound_[i];
  }
  return nullptr;
}

std::string Shapes::wanted(std::initializer_list<Dim> want) const {
  std::vector<std::string> items;
  for (const Dim& d : want) {
    const Bound* b = d.name.empty() ? nullptr : find(d.name);
    items.push_back(d.name.empty() ? std::to_string(d.size)
                    : b != nullptr ? std::to_string(b->size)
                                   : std::string(d.name));
  }
  return tuple(items);
}

void Shapes::visit(std::string_view argument, const TensorView& t, std::initializer_list<Dim> want,
                   bool whole) {
  if (t.rank != static_cast<int>(want.size())) raise_wrong_shape(argument, wanted(want), t);
  check_sizes(argument, t);
  std::size_t i = 0;
  for (const Dim& d : want) {
    const std::int64_t got = t.shape[i++];
    if (d.name.empty()) {
      if (got != d.size) raise_wrong_shape(argument, wanted(want), t);
      continue;
    }
    const Bound* b = find(d.name);
    if (b == nullptr) {
      set(d.name, got, argument);
    } else if (b->size != got && (whole || b->argument == argument)) {
      raise_wrong_shape(argument, wanted(want), t);
    } else if (b->size != got) {
      raise(errors::Page::size_mismatch, {{"name", std::string(argument)},
                                          {"size", std::string(d.name)},
                                          {"other", std::string(b->argument)},
                                          {"want", std::to_string(b->size)},
                                          {"got", std::to_string(got)}});
    }
  }
}

void Shapes::bind(std::string_view argument, const TensorView& t, std::initializer_list<Dim> want) {
  visit(argument, t, want, false);
}

void Shapes::expect(std::string_view argument, const TensorView& t,
                    std::initializer_list<Dim> want) {
  visit(argument, t, want, true);
}

void Shapes::set(std::string_view name, std::int64_t size, std::string_view argument) {
  if (find(name) != nullptr || count_ == bound_.size()) {
    raise(errors::Page::broken_invariant,
          {{"what", fmt::format("cannot bind the size {} ({} are bound)", name, count_)}});
  }
  bound_[count_++] = {name, argument, size};
}

std::int64_t Shapes::operator[](std::string_view name) const {
  const Bound* b = find(name);
  if (b == nullptr) {
    raise(errors::Page::broken_invariant,
          {{"what", fmt::format("the size {} is not bound", name)}});
  }
  return b->size;
}

void check_rank(std::string_view argument, const TensorView& t, int rank, std::string_view want) {
  if (t.rank != rank) raise_wrong_shape(argument, std::string(want), t);
  check_sizes(argument, t);
}

void check_dtype(std::string_view argument, const TensorView& t, DType want, DTypeNames names) {
  if (t.dtype == want) return;
  raise(errors::Page::wrong_dtype, {{"name", std::string(argument)},
                                    {"want", dtype_string(want, names)},
                                    {"got", dtype_string(t.dtype, names)}});
}

void check_device(std::string_view argument, const TensorView& t, Device want) {
  if (t.device == want) return;
  raise(errors::Page::wrong_device, {{"name", std::string(argument)},
                                     {"want", device_string(want)},
                                     {"got", device_string(t.device)}});
}

void check_same_device(std::string_view argument, const TensorView& t, std::string_view other,
                       Device want) {
  if (t.device == want) return;
  raise(errors::Page::not_on_same_device, {{"name", std::string(argument)},
                                           {"other", std::string(other)},
                                           {"want", device_string(want)},
                                           {"got", device_string(t.device)}});
}

void check_cuda(std::string_view argument, const TensorView& t) {
  if (t.device.type == DeviceType::cuda) return;
  raise(errors::Page::not_a_cuda_tensor,
        {{"name", std::string(argument)}, {"got", device_string(t.device)}});
}

void check_contiguous(std::string_view argument, const TensorView& t) {
  if (t.is_contiguous()) return;
  raise(errors::Page::not_contiguous, {{"name", std::string(argument)}});
}

void check_last_dim_contiguous(std::string_view argument, const TensorView& t) {
  if (t.rank <= 0 || t.rank > TensorView::kMaxRank) return;
  const auto d = static_cast<std::size_t>(t.rank - 1);
  if (t.shape[d] <= 1 || t.strides[d] == 1) return;
  raise(errors::Page::last_dim_not_contiguous,
        {{"name", std::string(argument)}, {"got", std::to_string(t.strides[d])}});
}

void check_stride_multiple(std::string_view argument, const TensorView& t, int dim,
                           std::int64_t bytes) {
  const auto d = static_cast<std::size_t>(dim);
  if (t.shape[d] <= 1) return;
  std::int64_t stride = 0;
  const bool fits = multiply(t.strides[d], size_of(t.dtype), stride);
  if (fits && stride % bytes == 0) return;
  raise(errors::Page::stride_not_a_multiple,
        {{"name", std::string(argument)},
         {"dim", std::to_string(dim)},
         {"want", std::to_string(bytes)},
         {"got", fits ? std::to_string(stride) : fmt::format("{} elements", t.strides[d])}});
}

void check_aligned(std::string_view argument, const TensorView& t, std::int64_t bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(t.data);
  if (t.numel() == 0 || address % static_cast<std::uintptr_t>(bytes) == 0) return;
  raise(errors::Page::not_aligned, {{"name", std::string(argument)},
                                    {"want", std::to_string(bytes)},
                                    {"got", fmt::format("{:#x}", address)}});
}

void check_data(std::string_view argument, const TensorView& t) {
  if (t.data != nullptr || t.numel() == 0) return;
  raise(errors::Page::null_data, {{"name", std::string(argument)}, {"got", shape_string(t)}});
}

void check_scalar(std::string_view argument, const TensorView& t) {
  const bool rank_possible = t.rank >= 0 && t.rank <= TensorView::kMaxRank;
  if (rank_possible && std::ranges::all_of(sizes_of(t), [](auto n) { return n == 1; })) return;
  raise(errors::Page::not_a_scalar, {{"name", std::string(argument)}, {"got", shape_string(t)}});
}

bool may_alias(const TensorView& a, const TensorView& b) noexcept {
  if (a.device != b.device) return false;
  std::int64_t a_first = 0;
  std::int64_t a_last = 0;
  std::int64_t b_first = 0;
  std::int64_t b_last = 0;
  if (!extent(a, a_first, a_last) || !extent(b, b_first, b_last)) return true;
  if (a_first == a_last || b_first == b_last) return false;
  const auto at = [](const TensorView& t, std::int64_t offset) {
    return reinterpret_cast<std::uintptr_t>(t.data) + static_cast<std::uintptr_t>(offset);
  };
  return at(a, a_first) < at(b, b_last) && at(b, b_first) < at(a, a_last);
}

}  // namespace serinus
