// A violation on its way to serinus.Violation.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

#include <serinus/canary.h>

namespace serinus::python {

/// Its pool's number, its line and its JSON: the frozen formats carry every field.
inline nanobind::tuple described(const canary::Violation& v, const std::string& pool_name) {
  return nanobind::make_tuple(v.pool, canary::to_text(v, pool_name), canary::to_json(v, pool_name));
}

}  // namespace serinus::python
