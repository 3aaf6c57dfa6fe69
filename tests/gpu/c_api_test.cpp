// The C ABI over pools on a GPU: the same monitor behind plain structs.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include <serinus_c.h>

#include "tests/gpu/device_problem.h"

namespace serinus {
namespace {

using testing::check_cuda;
using testing::DeviceBuffer;
using testing::kGpu;

constexpr std::int64_t kSlots = 64, kTokenBytes = 2 * 64 * 2, kColumns = 32;
constexpr std::uint32_t kOwner = 7;

void expect_ok(serinus_status status) {
  EXPECT_EQ(status, SERINUS_OK) << serinus_last_error()->message;
}

/// One request of a pool of two heads, one layer.
struct Engine {
  Engine() : k(kSlots * kTokenBytes, 1), v(kSlots * kTokenBytes, 2), table(2 * kColumns * 4, 0) {
    serinus_monitor_options options = {};
    options.struct_size = sizeof options;
    options.verify = SERINUS_VERIFY_ALL;
    expect_ok(serinus_monitor_create(&options, &monitor));
    serinus_layout_options shape = {};
    shape.struct_size = sizeof shape;
    shape.page_size = 16, shape.heads = 2, shape.head_size = 64, shape.dtype = SERINUS_BF16;
    serinus_layout* layout = nullptr;
    expect_ok(serinus_layout_create("mha_nhd", &shape, &layout));
    const serinus_buffer buffers[2] = {
        {reinterpret_cast<std::uint8_t*>(k.data()), static_cast<std::int64_t>(k.bytes()), 0},
        {reinterpret_cast<std::uint8_t*>(v.data()), static_cast<std::int64_t>(v.bytes()), 0}};
    serinus_pool pool = {};
    pool.struct_size = sizeof pool;
    pool.layout = layout, pool.buffers = buffers, pool.num_buffers = 2, pool.num_slots = kSlots;
    pool.device_type = SERINUS_CUDA, pool.table_rows = 2;
    expect_ok(serinus_monitor_add_pool(monitor, &pool, nullptr));
    serinus_layout_destroy(layout);
    std::vector<std::int32_t> cells(2 * kColumns);
    for (std::int64_t i = 0; i < kColumns; ++i) {
      cells[static_cast<std::size_t>(kColumns + i)] = static_cast<std::int32_t>(slot(i));
    }
    table.upload(cells.data(), table.bytes());
    std::vector<std::int64_t> slots;
    for (std::int64_t i = 0; i < kColumns; ++i) slots.push_back(slot(i));
    expect_ok(serinus_monitor_on_alloc(monitor, 0, slots.data(), slots.size(), kOwner));
  }
  ~Engine() { serinus_monitor_destroy(monitor); }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  static std::int64_t slot(std::int64_t position) { return 5 + position; }
  static serinus_tensor on_gpu(const DeviceBuffer& memory, serinus_dtype dtype,
                               std::vector<std::int64_t> shape) {
    serinus_tensor t =
        serinus_dense(memory.data(), dtype, static_cast<std::int32_t>(shape.size()), shape.data());
    t.device_type = SERINUS_CUDA;
    return t;
  }
  serinus_tensor req_to_token() const { return on_gpu(table, SERINUS_I32, {2, kColumns}); }
  void spoil(std::int64_t position) const {
    const std::uint8_t byte = 0x55;
    v.upload(&byte, 1, static_cast<std::size_t>(slot(position) * kTokenBytes + 100));
  }
  /// What was found so far, with nothing left to come.
  std::vector<serinus_violation> found() const {
    expect_ok(serinus_monitor_flush(monitor));
    std::vector<serinus_violation> out(8);
    std::size_t n = 0;
    expect_ok(serinus_monitor_poll(monitor, out.data(), out.size(), &n));
    out.resize(n);
    return out;
  }

  serinus_monitor* monitor = nullptr;
  DeviceBuffer k, v, table;
};

using CApiGpu = testing::GpuTest;

TEST_F(CApiGpu, ABatchOfHostArrays) {
  Engine e;
  const std::int64_t row = 1, prefix = 0, extend = 3, ids[3] = {1, 2, 3}, positions[3] = {0, 1, 2};
  const std::int64_t out[3] = {Engine::slot(0), Engine::slot(1), Engine::slot(2)};
  serinus_batch b = {};
  b.struct_size = sizeof b;
  b.num_requests = 1, b.rows = &row, b.prefix_lens = &prefix, b.extend_lens = &extend;
  b.owners = &kOwner, b.req_to_token = e.req_to_token();
  b.num_tokens = 3, b.input_ids = ids, b.positions = positions, b.out_cache_loc = out;
  expect_ok(serinus_monitor_begin_step(e.monitor, &b, nullptr));
  expect_ok(serinus_monitor_end_step(e.monitor, &b, nullptr));
  EXPECT_TRUE(e.found().empty());
  e.spoil(1);
  const std::vector<serinus_violation> found = e.found();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].reasons, static_cast<std::uint32_t>(SERINUS_REASON_KV_BYTES));
  EXPECT_EQ(found[0].slot, Engine::slot(1));
  std::vector<std::int32_t> host(2 * kColumns);
  const std::int64_t shape[2] = {2, kColumns};
  b.req_to_token = serinus_dense(host.data(), SERINUS_I32, 2, shape);
  EXPECT_EQ(serinus_monitor_begin_step(e.monitor, &b, nullptr), SERINUS_VALUE_ERROR);
}

TEST_F(CApiGpu, ABatchOnTheDeviceAndAGraphOfIt) {
  Engine e;
  // rows, prefix, extend, ids, positions, locations, valid: a word each; the owner.
  const std::int64_t words[7] = {1, 0, 1, 50, 0, Engine::slot(0), 1};
  const DeviceBuffer device(sizeof words), owner(4);
  owner.upload(&kOwner, 4);
  const auto word = [&](std::int64_t i) {
    serinus_tensor t = Engine::on_gpu(device, SERINUS_I64, {1});
    t.data = device.data() + 8 * i;
    return t;
  };
  serinus_device_batch b = {};
  b.struct_size = sizeof b;
  b.rows = word(0), b.prefix_lens = word(1), b.extend_lens = word(2), b.input_ids = word(3);
  b.positions = word(4), b.out_cache_loc = word(5), b.valid_lens = word(6);
  b.owners = Engine::on_gpu(owner, SERINUS_U32, {1});
  b.req_to_token = e.req_to_token();
  device.upload(words, sizeof words);
  expect_ok(serinus_monitor_begin_step_on_device(e.monitor, &b, nullptr));
  expect_ok(serinus_monitor_end_step_on_device(e.monitor, &b, nullptr));
  check_cuda(cudaDeviceSynchronize());
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  cudaGraph_t graph = nullptr;
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  expect_ok(serinus_monitor_begin_step_on_device(e.monitor, &b, stream));
  expect_ok(serinus_monitor_end_step_on_device(e.monitor, &b, stream));
  check_cuda(cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t exec = nullptr;
  check_cuda(cudaGraphInstantiate(&exec, graph, 0));
  check_cuda(cudaGraphDestroy(graph));
  for (std::int64_t n = 1; n < 10; ++n) {
    const std::int64_t next[7] = {1, n, 1, 50 + n, n, Engine::slot(n), n + 1};
    device.upload(next, sizeof next);
    check_cuda(cudaDeviceSynchronize());
    if (n == 6) e.spoil(2);
    expect_ok(serinus_monitor_begin_replay(e.monitor, &b, stream));
    check_cuda(cudaGraphLaunch(exec, stream));
    check_cuda(cudaStreamSynchronize(stream));
  }
  const std::vector<serinus_violation> found = e.found();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].slot, Engine::slot(2));
  EXPECT_EQ(found[0].request, kOwner);
  EXPECT_EQ(found[0].first_step, 6u);
  serinus_monitor_stats stats = {};
  stats.struct_size = sizeof stats;
  expect_ok(serinus_monitor_get_stats(e.monitor, &stats));
  EXPECT_EQ(stats.records_written, 10u);
  // For an all-gather, as the host would make it: of the first nine, the last prefix_lens.
  const DeviceBuffer made(sizeof(serinus_request_digest));
  const serinus_tensor digests = Engine::on_gpu(made, SERINUS_U8, {1, 32});
  expect_ok(serinus_monitor_request_digests(e.monitor, 0, &b, &digests, stream));
  expect_ok(serinus_monitor_wait(e.monitor));
  const serinus_request_digest got = made.download<serinus_request_digest>()[0];
  serinus_request_digest want = {};
  const serinus_tensor rows = e.req_to_token();
  expect_ok(serinus_monitor_rank_digest(e.monitor, 0, kOwner, 1, 9, &rows, &want));
  EXPECT_EQ(std::memcmp(&got, &want, sizeof got), 0);
  b.rows.device_type = SERINUS_CPU;
  EXPECT_EQ(serinus_monitor_begin_step_on_device(e.monitor, &b, nullptr), SERINUS_VALUE_ERROR);
  check_cuda(cudaGraphExecDestroy(exec));
  check_cuda(cudaStreamDestroy(stream));
}

}  // namespace
}  // namespace serinus
