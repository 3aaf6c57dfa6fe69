#include "base/raise.h"

#include <string>

namespace serinus {

// All four are taken by value alike; the base class copies the message from wherever it is.
// NOLINTNEXTLINE(performance-unnecessary-value-param)
Error::Error(std::string id, std::string message, std::string argument, std::string value)
    : std::runtime_error(message),
      id_(std::move(id)),
      argument_(std::move(argument)),
      value_(std::move(value)) {}

namespace {

const std::string* find(std::initializer_list<ErrorField> fields, std::string_view key) {
  for (const ErrorField& f : fields) {
    if (f.key == key) return &f.value;
  }
  return nullptr;
}

std::string first_of(std::initializer_list<ErrorField> fields, std::string_view a,
                     std::string_view b) {
  if (const std::string* v = find(fields, a)) return *v;
  if (const std::string* v = find(fields, b)) return *v;
  return {};
}

std::string message_of(const ErrorEntry& entry, std::initializer_list<ErrorField> fields) {
  const std::string_view t = entry.message;
  std::string out;
  for (std::size_t i = 0; i < t.size();) {
    const std::size_t close = t[i] == '{' ? t.find('}', i) : std::string_view::npos;
    if (close == std::string_view::npos) {
      out += t[i++];
      continue;
    }
    const std::string_view key = t.substr(i + 1, close - i - 1);
    const std::string* value = find(fields, key);
    if (value == nullptr) {
      throw InternalError(
          std::string(entry.id),
          "error page " + std::string(entry.slug) + ": no value for {" + std::string(key) + "}", {},
          {});
    }
    out += *value;
    i = close + 1;
  }
  return out;
}

[[noreturn]] void raise_entry(const ErrorEntry& entry, std::initializer_list<ErrorField> fields) {
  std::string message = message_of(entry, fields);
  std::string argument = first_of(fields, "name", "argument");
  std::string value = first_of(fields, "got", "value");
  std::string id(entry.id);
  const auto go = [&]<class E>() {
    throw E(std::move(id), std::move(message), std::move(argument), std::move(value));
  };
  if (entry.exception == "ValueError") go.operator()<ValueError>();
  if (entry.exception == "TypeError") go.operator()<TypeError>();
  if (entry.exception == "InputError") go.operator()<InputError>();
  if (entry.exception == "RuntimeError") go.operator()<RuntimeError>();
  if (entry.exception == "NotImplementedError") go.operator()<NotImplementedError>();
  throw InternalError(std::move(id), std::move(message), std::move(argument), std::move(value));
}

}  // namespace

std::string error_message(errors::Page page, std::initializer_list<ErrorField> fields) {
  return message_of(entry_of(page), fields);
}

void raise(errors::Page page, std::initializer_list<ErrorField> fields) {
  raise_entry(entry_of(page), fields);
}

void raise(std::string_view slug, std::initializer_list<ErrorField> fields) {
  for (const ErrorEntry& entry : error_reference()) {
    if (entry.slug == slug) raise_entry(entry, fields);
  }
  throw InternalError({}, "no error page has the slug " + std::string(slug), {}, {});
}

}  // namespace serinus
