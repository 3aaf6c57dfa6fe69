#include "emulator.h"

#include <ucontext.h>

#include <csetjmp>
#include <vector>

dim3 threadIdx, blockIdx, gridDim, blockDim;

namespace emulator {

namespace {

constexpr std::size_t kStack = 128 << 10;

struct Fiber {
  ucontext_t start;
  jmp_buf at;
  bool started = false, done = false;
};

jmp_buf scheduler;
std::vector<Fiber> fibers;
std::vector<std::vector<char>> stacks;
unsigned current = 0;
const std::function<void()>* kernel = nullptr;
Meeting cta;
Meeting named[16];
Meeting lanes[Meeting::kMost / 32][33];  // of every warp: by their first lane, and all 32

}  // namespace

void let_others_go_on() {
  const unsigned me = current;
  if (_setjmp(fibers[me].at) == 0) _longjmp(scheduler, 1);
}

namespace {

void entry() {
  (*kernel)();
  fibers[current].done = true;
  _longjmp(scheduler, 1);
}

/// Runs thread t until it waits for others, or is done. No part of its caller: it returns twice.
[[gnu::noinline]] void go_on(unsigned t) {
  current = t;
  threadIdx.x = t;
  if (_setjmp(scheduler) != 0) return;
  Fiber& f = fibers[t];
  if (f.started) _longjmp(f.at, 1);
  f.started = true;
  getcontext(&f.start);
  f.start.uc_stack.ss_sp = stacks[t].data();
  f.start.uc_stack.ss_size = kStack;
  f.start.uc_link = nullptr;
  makecontext(&f.start, entry, 0);
  setcontext(&f.start);
}

/// `threads` of the threads at places [0, places) meet.
const std::uint64_t* meet(Meeting& m, unsigned place, unsigned places, unsigned threads,
                          std::uint64_t value) {
  m.brought[place] = value;
  const unsigned generation = m.generation;
  if (++m.count == threads) {
    std::memcpy(m.taken, m.brought, places * sizeof m.taken[0]);
    m.count = 0;
    ++m.generation;
  } else {
    while (m.generation == generation) let_others_go_on();
  }
  return m.taken;
}

}  // namespace

void meet_named(int barrier, unsigned threads) {
  meet(named[barrier], threadIdx.x, blockDim.x, threads, 0);
}

const std::uint64_t* meet_cta(std::uint64_t value) {
  return meet(cta, threadIdx.x, blockDim.x, blockDim.x, value);
}

const std::uint64_t* meet_lanes(unsigned mask, std::uint64_t value) {
  const unsigned group = mask == ~0u ? 32 : static_cast<unsigned>(__builtin_ctz(mask));
  return meet(lanes[threadIdx.x / 32][group], threadIdx.x % 32, 32,
              static_cast<unsigned>(__builtin_popcount(mask)), value);
}

void run(dim3 grid, dim3 block, const std::function<void()>& body) {
  gridDim = grid;
  blockDim = block;
  kernel = &body;
  while (stacks.size() < block.x) stacks.emplace_back(kStack);
  for (unsigned b = 0; b < grid.x * grid.y; ++b) {
    blockIdx.x = b % grid.x;
    blockIdx.y = b / grid.x;
    fibers = std::vector<Fiber>(block.x);
    for (bool running = true; running;) {
      running = false;
      for (unsigned t = 0; t < block.x; ++t) {
        if (fibers[t].done) continue;
        running = true;
        go_on(t);
      }
    }
  }
}

}  // namespace emulator
