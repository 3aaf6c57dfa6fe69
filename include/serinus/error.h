// The errors that Serinus raises. Every error has an id and a page in the error reference
// (errors/<slug>.md, `serinus explain <id>`); its message comes from that page, so the two cannot
// drift apart.
#pragma once

#include <initializer_list>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace serinus {

/// Base of everything that Serinus throws on purpose. `what()` is the message alone, without the
/// id.
class Error : public std::runtime_error {
 public:
  Error(std::string id, std::string message, std::string argument, std::string value);

  /// Stable id such as "SRN1001"; looks up the page in the error reference.
  const std::string& id() const noexcept { return id_; }
  /// Name of the offending argument, field or option as the caller wrote it; empty if there is
  /// none.
  const std::string& argument() const noexcept { return argument_; }
  /// The offending value, printed; empty if there is none.
  const std::string& value() const noexcept { return value_; }

 private:
  std::string id_, argument_, value_;
};

/// A value that the caller can mend: shape, stride, range, combination. Python: ValueError.
class ValueError : public Error {
  using Error::Error;
};
/// An argument of a kind that the call does not take (a wrong dtype is none). Python: TypeError.
class TypeError : public Error {
  using Error::Error;
};
/// A file, trace, tensor file or pool dump that cannot be read or written. Python: OSError.
class InputError : public Error {
  using Error::Error;
};
/// Sound request, but this build, machine or state cannot serve it. Python: RuntimeError.
class RuntimeError : public Error {
  using Error::Error;
};
/// Not offered (yet) for this class of object. Python: NotImplementedError.
class NotImplementedError : public Error {
  using Error::Error;
};
/// A broken invariant of Serinus itself: please report it. Never caused by input alone.
class InternalError : public Error {
  using Error::Error;
};

/// One page of the error reference. All views point into static storage.
struct ErrorEntry {
  std::string_view id;         ///< "SRN1001"
  std::string_view slug;       ///< file name under errors/, without extension
  std::string_view title;      ///< one line
  std::string_view message;    ///< template of the message: "{name} must be contiguous"
  std::string_view exception;  ///< name of the class above
  std::string_view meaning;
  std::string_view trigger;
  std::vector<std::string_view> situations;
  std::vector<std::string_view> solutions;  ///< in the order to try
  std::string_view example_before, example_after;
  std::string_view guard;                   ///< a snippet that checks beforehand
  std::vector<std::string_view> related;    ///< slugs
  std::vector<std::string_view> raised_at;  ///< source files, relative to the repository
};

/// All entries, ordered by id. Parsed once; thread-safe.
std::span<const ErrorEntry> error_reference();

/// The value of a placeholder in a page's message: {"got", "7"} for {got}.
struct ErrorField {
  std::string_view key;
  std::string value;
};

/// Throws what the page `slug` says, with its message filled in: for the code around the library,
/// such as a transport, whose errors have pages here. Every placeholder must be given.
[[noreturn]] void raise(std::string_view slug, std::initializer_list<ErrorField> fields);

/// Finds the entry that `text` is about: an id, a slug, or a pasted error line (also with the
/// exception's name or an id before it). The most specific template wins. Null if none fits.
const ErrorEntry* find_error(std::string_view text);

}  // namespace serinus
