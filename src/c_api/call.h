// What every function of the C ABI is made of: an exception becomes a status, and what comes in is
// checked for what C cannot promise (null pointers, sizes of structs, values of enums).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <span>
#include <string>
#include <string_view>

#include <serinus/tensor.h>
#include <serinus_c.h>

#include "base/raise.h"

namespace serinus::c_api {

/// Remembers the exception being handled as this thread's last error; its status.
serinus_status remember_current_exception() noexcept;

/// The same for an error that was reported without being thrown.
serinus_status remember(serinus_status status, std::string_view id, std::string_view message,
                        std::string_view argument, std::string_view value) noexcept;

/// Runs `body`; no exception leaves.
template <class Body>
serinus_status call(Body&& body) noexcept {
  try {
    body();
    return SERINUS_OK;
  } catch (...) {
    return remember_current_exception();
  }
}

template <class T>
T& required(const char* name, T* pointer) {
  if (pointer == nullptr) raise(errors::Page::c_null_argument, {{"name", name}});
  return *pointer;
}

template <class T>
std::span<T> array(const char* name, T* pointer, std::size_t n) {
  if (n != 0) required(name, pointer);
  return {pointer, n};
}

/// The caller's struct. It may end where the first version of the ABI ended it, at `first` bytes:
/// the fields that have come since are then zero. And it may be longer than the one that this
/// library knows, if the rest is zero; but not by much: a size that nobody set must not send us
/// through the caller's memory.
template <class T>
T read_struct(const char* name, const T* pointer, std::size_t first = sizeof(T)) {
  required(name, pointer);
  const std::uint32_t size = pointer->struct_size;
  constexpr std::size_t kLaterFields = 1024;  // bytes that versions to come may add
  bool known = size >= first && size <= sizeof(T) + kLaterFields;
  const auto* bytes = reinterpret_cast<const unsigned char*>(pointer);
  for (std::size_t i = sizeof(T); known && i < size; ++i) known = bytes[i] == 0;
  if (!known)
    raise(errors::Page::c_struct_size,
          {{"name", name}, {"got", std::to_string(size)}, {"want", std::to_string(first)}});
  T known_part{};
  std::memcpy(&known_part, pointer, std::min<std::size_t>(size, sizeof(T)));
  return known_part;
}

/// An enum of C as the C++ enum at the same place of `values`.
template <class E>
E one_of(const char* name, std::int64_t value, std::initializer_list<E> values) {
  if (value < 0 || value >= static_cast<std::int64_t>(values.size()))
    raise(errors::Page::c_unknown_value, {{"name", name},
                                          {"got", std::to_string(value)},
                                          {"want", std::to_string(values.size() - 1)}});
  return values.begin()[value];
}

DType dtype(const char* name, serinus_dtype value);
Device device(const char* name, std::int32_t type, std::int32_t index);
TensorView tensor(const char* name, const serinus_tensor& t);

}  // namespace serinus::c_api
