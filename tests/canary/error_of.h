// What a call says that must fail.
#pragma once

#include <string>

#include <serinus/error.h>

namespace serinus::canary {

template <class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.id() + " " + e.what();
  }
  return "no error";
}

}  // namespace serinus::canary
