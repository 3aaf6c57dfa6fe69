// A device that has failed, be it by the engine's own kernel: the Monitor throws, and that is all.
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

}  // namespace
}  // namespace serinus::canary
