/* Attach a canary to an engine in C, or through C from any language: docs/attach.md. */
#include <stdio.h>

#include <serinus_c.h>

#define CHECK(call) \
  if ((call) != SERINUS_OK) return fprintf(stderr, "%s\n", serinus_last_error()->message), 1
enum { PAGE = 16, SLOTS = 8 * PAGE, TOKEN = 4 * 64 * 2, OWNER = 7 };
static uint8_t memory[2][SLOTS * TOKEN]; /* k and v: 4 heads of 64 bf16 values */
static int32_t req_to_token[2][64];      /* row 0 is padding */

static int forward(serinus_monitor* m, int64_t prefix, size_t n, const int64_t* ids,
                   const int64_t* out) {
  const int64_t row = 1, extend = (int64_t)n, shape[2] = {2, 64};
  const int64_t positions[2] = {prefix, prefix + 1};
  const uint32_t owner = OWNER;
  serinus_batch batch = {.struct_size = sizeof batch}; /* 4. bracket every forward */
  batch.num_requests = 1, batch.rows = &row, batch.owners = &owner;
  batch.prefix_lens = &prefix, batch.extend_lens = &extend;
  batch.num_tokens = n, batch.input_ids = ids, batch.positions = positions;
  batch.out_cache_loc = out;
  batch.req_to_token = serinus_dense(req_to_token, SERINUS_I32, 2, shape);
  CHECK(serinus_monitor_begin_step(m, &batch, NULL));
  for (size_t i = 0; i < n; ++i) memory[0][out[i] * TOKEN] = 0x3F; /* the model */
  CHECK(serinus_monitor_end_step(m, &batch, NULL));
  serinus_violation v[8]; /* 5. read what it found */
  size_t found = 0;
  CHECK(serinus_monitor_poll(m, v, 8, &found));
  for (size_t i = 0; i < found; ++i) {
    char line[1024];
    CHECK(serinus_violation_print(&v[i], "kv", 0, line, sizeof line, NULL));
    puts(line);
  }
  return 0;
}

int main(void) {
  serinus_monitor* m = NULL; /* 1. configure: a file, the environment, or code */
  CHECK(serinus_monitor_create_configured(NULL, &m));
  serinus_layout_options options = {.struct_size = sizeof options};
  options.page_size = PAGE, options.heads = 4, options.head_size = 64, options.dtype = SERINUS_BF16;
  serinus_layout* layout = NULL; /* 2. describe the pool */
  CHECK(serinus_layout_create("mha_nhd", &options, &layout));
  const serinus_buffer buffers[2] = {{memory[0], sizeof memory[0], 0},
                                     {memory[1], sizeof memory[1], 0}};
  serinus_pool pool = {.struct_size = sizeof pool};
  pool.layout = layout, pool.buffers = buffers, pool.num_buffers = 2, pool.num_slots = SLOTS;
  CHECK(serinus_monitor_add_pool(m, &pool, NULL));
  serinus_layout_destroy(layout);
  const int64_t slots[3] = {20, 21, 99}, ids[3] = {101, 102, 103};
  for (int i = 0; i < 3; ++i) req_to_token[1][i] = (int32_t)slots[i];
  CHECK(serinus_monitor_on_alloc(m, 0, slots, 3, OWNER)); /* 3. say what the allocator does */
  if (forward(m, 0, 2, ids, slots)) return 1;
  memory[1][21 * TOKEN] ^= 1; /* a stray write into V */
  if (forward(m, 2, 1, ids + 2, slots + 2)) return 1;
  serinus_monitor_stats stats = {.struct_size = sizeof stats};
  CHECK(serinus_monitor_get_stats(m, &stats));
  serinus_monitor_destroy(m);
  return stats.violations == 1 ? 0 : 1;
}
