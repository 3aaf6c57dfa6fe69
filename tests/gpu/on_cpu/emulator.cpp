#include "emulator.h"

#include <ucontext.h>

#include <csetjmp>
#include <vector>

dim3 threadIdx, blockIdx, gridDim, blockDim;

namespace emulator {

namespace {

constexpr std::size_t kStack = 128 << 10;

#ifdef SERINUS_SLOW_FIBERS  // ThreadSanitizer follows the jumps, and does not understand them
using Place = ucontext_t;
#define SERINUS_SWITCH(from, to) swapcontext(&(from), &(to))
#else
using Place = jmp_buf;
#define SERINUS_SWITCH(from, to) \
  if (_setjmp(from) == 0) _longjmp(to, 1)
#endif

struct Fiber {
  ucontext_t start;
  Place at;
  bool started = false, done = false;
};

Place scheduler;
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
  SERINUS_SWITCH(fibers[me].at, scheduler);
}

namespace {

void entry() {
  (*kernel)();
  fibers[current].done = true;
  let_others_go_on();
}

/// Runs thread t until it waits for others, or is done. No part of its caller: it returns twice.
[[gnu::noinline]] void go_on(unsigned t) {
  current = t;
  threadIdx.x = t;
  Fiber& f = fibers[t];
  if (f.started) {
    SERINUS_SWITCH(scheduler, f.at);
    return;
  }
  f.started = true;
  getcontext(&f.start);
  f.start.uc_stack.ss_sp = stacks[t].data();
  f.start.uc_stack.ss_size = kStack;
  f.start.uc_link = nullptr;
  makecontext(&f.start, entry, 0);
#ifdef SERINUS_SLOW_FIBERS
  swapcontext(&scheduler, &f.start);
#else
  if (_setjmp(scheduler) == 0) setcontext(&f.start);
#endif
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
