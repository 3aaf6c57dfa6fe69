// A page of the error reference as JSON: what `serinus explain --json` and /api/errors/ answer.
#pragma once

#include <nlohmann/json.hpp>

#include <serinus/error.h>

namespace serinus::serve {

using Json = nlohmann::ordered_json;

Json to_json(const ErrorEntry& entry);

/// As text, indented; bytes that are no UTF-8 become U+FFFD.
std::string dump(const Json& json);

}  // namespace serinus::serve
