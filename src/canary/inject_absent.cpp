// Injection in a library that was built without it, which is the rule.
#include <serinus/canary_inject.h>

#include "base/raise.h"

namespace serinus::canary {

Injector::Injector(Monitor& monitor, InjectOptions options) : monitor_(monitor), options_(options) {
  raise(errors::Page::injection_off,
        {{"argument", "Injector"}, {"why", "this library was built without it"}});
}

std::vector<Injected> Injector::before_step(const Batch&, std::span<std::int64_t>,
                                            std::span<std::int64_t>) {
  return {};
}

std::vector<Injected> Injector::after_step(const Batch&) {
  return {};
}

}  // namespace serinus::canary
