// A device that has failed, be it by the engine's own kernel: the Monitor throws, and that is all.
// And what it has of the device's memory.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include <serinus/canary.h>

namespace serinus::canary {
namespace {

TEST(MonitorOfAFailedDevice, Throws) {
  for (const Format format : {Format::serinus, Format::sglang}) {
    Monitor m({.format = format, .depth = Depth::none});
    PoolSpec spec;
    spec.device = {DeviceType::cuda, 0};
    spec.layout.page_bytes = {16};
    spec.num_slots = 8;
    m.add_pool(spec);
    std::vector<std::int32_t> table(16);
    const std::array<std::int64_t, 1> row{1}, prefix{0}, extend{1}, token{7}, location{3};
    const std::array<Owner, 1> owner{1};
    Batch b;
    b.rows = row, b.prefix_lens = prefix, b.extend_lens = extend, b.owners = owner;
    b.input_ids = token, b.positions = prefix, b.out_cache_loc = location;
    b.req_to_token = {table.data(), DType::i32, {2, 8}, spec.device};
    m.on_alloc(0, location, 1);
    m.begin_step(b);
    emulator::failure = cudaErrorNotReady;
    EXPECT_THROW(m.end_step(b), std::runtime_error);
    EXPECT_THROW(m.begin_step(b), std::runtime_error);
    emulator::failure = cudaSuccess;
  }
}

TEST(MonitorOfAGrowingBatch, GivesBackWhatItHasOutgrown) {
  Monitor m({.format = Format::sglang, .depth = Depth::none});
  PoolSpec spec;
  spec.device = {DeviceType::cuda, 0};
  spec.layout.page_bytes = {16};
  spec.num_slots = 8;
  m.add_pool(spec);
  std::vector<std::int32_t> table(1 << 17);
  const auto step = [&](std::int64_t prefix) {
    const std::array<std::int64_t, 1> row{1}, length{prefix}, none{0};
    const std::array<Owner, 1> owner{1};
    Batch b;
    b.rows = row, b.prefix_lens = length, b.extend_lens = none, b.owners = owner;
    b.req_to_token = {table.data(), DType::i32, {2, 1 << 16}, spec.device};
    m.begin_step(b);
    m.end_step(b);
  };
  step(1);
  m.flush();  // has room of its own from now on
  const std::size_t before = emulator::allocated;
  for (std::int64_t prefix = 1; prefix <= 4096; prefix += 64) step(prefix);
  const std::size_t grown = emulator::allocated - before;
  m.flush();
  EXPECT_LT(emulator::allocated - before, grown * 3 / 4);
  EXPECT_LE(emulator::allocated - before, 2u * 4096 * 32 + 4096);
}

}  // namespace
}  // namespace serinus::canary
