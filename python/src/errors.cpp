// The library's exceptions as Python's (serinus/errors.py holds the classes), and the error
// reference.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <serinus/error.h>

#include "base/raise.h"
#include "bind.h"

namespace serinus::python {

namespace nb = nanobind;

namespace {

const char* class_of(const Error& e) {
  if (dynamic_cast<const ValueError*>(&e) != nullptr) return "ValueError";
  if (dynamic_cast<const TypeError*>(&e) != nullptr) return "TypeError";
  if (dynamic_cast<const InputError*>(&e) != nullptr) return "InputError";
  if (dynamic_cast<const RuntimeError*>(&e) != nullptr) return "RuntimeError";
  if (dynamic_cast<const NotImplementedError*>(&e) != nullptr) return "NotImplementedError";
  if (dynamic_cast<const InternalError*>(&e) != nullptr) return "InternalError";
  return "Error";
}

void set_python_error(const Error& e) {
  const nb::object type = nb::module_::import_("serinus.errors").attr(class_of(e));
  const nb::object error = type(std::string(e.what()), e.id(), e.argument(), e.value());
  PyErr_SetObject(type.ptr(), error.ptr());
}

nb::list strings(std::span<const std::string_view> items) {
  nb::list out;
  for (const std::string_view s : items) out.append(nb::str(s.data(), s.size()));
  return out;
}

nb::dict entry(const ErrorEntry& e) {
  nb::dict d;
  d["id"] = e.id;
  d["slug"] = e.slug;
  d["title"] = e.title;
  d["message"] = e.message;
  d["exception"] = e.exception;
  d["meaning"] = e.meaning;
  d["trigger"] = e.trigger;
  d["situations"] = strings(e.situations);
  d["solutions"] = strings(e.solutions);
  d["example_before"] = e.example_before;
  d["example_after"] = e.example_after;
  d["guard"] = e.guard;
  d["related"] = strings(e.related);
  d["raised_at"] = strings(e.raised_at);
  return d;
}

}  // namespace

void bind_errors(nb::module_& m) {
  nb::register_exception_translator([](const std::exception_ptr& p, void*) {
    try {
      std::rethrow_exception(p);
    } catch (const Error& e) {
      set_python_error(e);
    }
  });
  m.def("error_reference", [] {
    nb::list all;
    for (const ErrorEntry& e : error_reference()) all.append(entry(e));
    return all;
  });
  m.def("find_error", [](std::string_view text) -> nb::object {
    const ErrorEntry* found = find_error(text);
    return found == nullptr ? nb::object(nb::none()) : nb::object(entry(*found));
  });
  // What only the Python side can find out, raised through its page like everything else.
  m.def("raise_already_imported", [](const std::string& name) {
    raise(errors::Page::python_sglang_already_imported, {{"name", name}});
  });
  m.def("raise_forward_only", [](const std::string& name) {
    raise(errors::Page::python_forward_only, {{"name", name}});
  });
  m.def("raise_topk_length_out_of_range", [](std::int64_t topk, std::int64_t got) {
    raise(errors::Page::sparse_mla_topk_length_out_of_range, {{"argument", "topk_length"},
                                                              {"topk", std::to_string(topk)},
                                                              {"got", std::to_string(got)}});
  });
  m.def("raise_unknown_option", [](const std::string& name, const std::string& want,
                                   const std::string& got) {
    raise(errors::Page::python_unknown_option, {{"name", name}, {"want", want}, {"got", got}});
  });
}

}  // namespace serinus::python
