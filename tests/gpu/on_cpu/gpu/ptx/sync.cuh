// src/gpu/ptx/sync.cuh, to the emulator.
#pragma once

#include "emulator.h"

namespace serinus::gpu::ptx {

inline void barrier_of_threads(int id, int threads) {
  emulator::meet_named(id, static_cast<unsigned>(threads));
}

}  // namespace serinus::gpu::ptx
