// How the library raises: the message is the page's template, filled in.
//
//   raise(errors::Page::not_contiguous, {{"name", "kv"}});
//   raise(errors::Page::wrong_rank, {{"name", "q"}, {"want", "3"}, {"got", "2"}});
//
// Every placeholder of the template must be given. Two keys are understood beside them: "name" (or
// "argument", where the template spells the name out) is the argument at fault, "got" (or "value")
// the offending value; they become Error::argument() and Error::value().
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include <serinus/error.h>

#include "error_ids.h"

namespace serinus {

/// Throws the class that the page names under `exception`.
[[noreturn]] void raise(errors::Page page, std::initializer_list<ErrorField> fields);

/// The page's message, filled in; what raise() would put into what(). For backends that report
/// without throwing.
std::string error_message(errors::Page page, std::initializer_list<ErrorField> fields);

const ErrorEntry& entry_of(errors::Page page);

}  // namespace serinus
