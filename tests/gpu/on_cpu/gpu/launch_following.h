// src/gpu/launch_following.h, to the emulator.
#pragma once

#include "gpu/launch.h"

namespace serinus::gpu::inline emulated {

template <class... Args, class... Given>
void launch_following(const char* what, void (*kernel)(Args...), const Shape& shape, Stream stream,
                      const Given&... given) {
  launch(what, kernel, shape, stream, given...);
}

}  // namespace serinus::gpu::inline emulated
