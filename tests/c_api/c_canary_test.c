/* The canary from C, as an engine uses it: a pool, two steps, a flipped byte, and what is said of
 * it. */
#include <stdlib.h>
#include <string.h>

#include <serinus_c.h>

#include "check.h"

enum { PAGE = 64, PAGES = 2, SLOTS = PAGE * PAGES, TOKENS = 5, OWNER = 7 };

static int32_t table[2][16]; /* req_to_token: row 0 is padding */
static int64_t slots[TOKENS + 1];

static serinus_batch batch_of(int64_t* prefix_len, int64_t* extend_len, const int64_t* ids,
                              const int64_t* positions, const int64_t* locations) {
  static const int64_t rows[1] = {1};
  static const uint32_t owners[1] = {OWNER};
  const int64_t shape[2] = {2, 16};
  serinus_batch b = {.struct_size = sizeof b};
  b.num_requests = 1;
  b.rows = rows;
  b.prefix_lens = prefix_len;
  b.extend_lens = extend_len;
  b.owners = owners;
  b.req_to_token = serinus_dense(table, SERINUS_I32, 2, shape);
  b.num_tokens = (size_t)*extend_len;
  b.input_ids = ids;
  b.positions = positions;
  b.out_cache_loc = locations;
  return b;
}

int main(void) {
  serinus_layout* layout = NULL;
  CHECK_OK(serinus_layout_create("fp8_656", NULL, &layout));
  const int64_t bytes = PAGES * serinus_layout_page_bytes(layout, 0);
  uint8_t* kv = malloc((size_t)bytes);
  for (int64_t i = 0; i < bytes; ++i) kv[i] = (uint8_t)(i * 131 >> 3);

  serinus_monitor_options options = {.struct_size = sizeof options};
  options.mode = SERINUS_MODE_QUARANTINE;
  options.verify = SERINUS_VERIFY_ALL;
  options.source_digests = 1;
  serinus_monitor* monitor = NULL;
  CHECK_OK(serinus_monitor_create(&options, &monitor));

  const serinus_buffer buffer = {kv, bytes, 0};
  serinus_pool pool = {.struct_size = sizeof pool};
  pool.name = "main";
  pool.layout = layout;
  pool.buffers = &buffer;
  pool.num_buffers = 1;
  pool.num_slots = SLOTS;
  int32_t number = -1;
  CHECK_OK(serinus_monitor_add_pool(monitor, &pool, &number));
  CHECK(number == 0);
  serinus_layout_destroy(layout); /* the pool has its own copy */
  int64_t sources = 0;
  CHECK_OK(serinus_monitor_num_sources(monitor, 0, &sources));
  CHECK(sources == 3);

  /* A request of five tokens gets scattered slots, and its first forward writes them. */
  for (int i = 0; i <= TOKENS; ++i) {
    slots[i] = 3 + 17 * i;
    table[1][i] = (int32_t)slots[i];
  }
  CHECK_OK(serinus_monitor_on_alloc(monitor, 0, slots, TOKENS + 1, OWNER));
  const int64_t ids[TOKENS] = {11, 22, 33, 44, 55}, positions[TOKENS] = {0, 1, 2, 3, 4};
  int64_t prefix = 0, extend = TOKENS;
  serinus_batch batch = batch_of(&prefix, &extend, ids, positions, slots);
  CHECK_OK(serinus_monitor_begin_step(monitor, &batch, NULL));
  CHECK_OK(serinus_monitor_end_step(monitor, &batch, NULL));
  CHECK_OK(serinus_monitor_flush(monitor));
  serinus_violation found[4];
  size_t n = 99;
  CHECK_OK(serinus_monitor_poll(monitor, found, 4, &n));
  CHECK(n == 0);

  /* Records leave with their bytes and come back. */
  serinus_record records[2];
  memset(records, 0, sizeof records);
  uint32_t digests[2 * 3];
  CHECK_OK(serinus_monitor_on_store(monitor, 0, slots + 1, 2, records, digests));
  CHECK(records[1].token == 33 && records[1].position == 2 && records[1].chain != 0);
  CHECK(records[1].owner == OWNER && records[1].kv_digest != 0);
  CHECK_OK(serinus_monitor_on_load(monitor, 0, records, digests, slots + 1, 2, OWNER));

  /* Between the steps a byte of the third token's RoPE flips; the next head check sees it. */
  kv[(slots[2] / PAGE) * PAGE * 656 + (slots[2] % PAGE) * 656 + 600] ^= 0x10;
  prefix = TOKENS;
  extend = 1;
  const int64_t next_id[1] = {66}, next_position[1] = {TOKENS};
  batch = batch_of(&prefix, &extend, next_id, next_position, slots + TOKENS);
  CHECK_OK(serinus_monitor_begin_step(monitor, &batch, NULL));
  CHECK_OK(serinus_monitor_end_step(monitor, &batch, NULL));
  CHECK_OK(serinus_monitor_flush(monitor));
  CHECK_OK(serinus_monitor_poll(monitor, NULL, 0, &n)); /* no room: nothing is lost */
  CHECK(n == 0);
  memset(found, 0, sizeof found);
  CHECK_OK(serinus_monitor_poll(monitor, found, 4, &n));
  CHECK(n == 1);
  CHECK(found[0].reasons == SERINUS_REASON_KV_BYTES);
  CHECK(found[0].slot == slots[2] && found[0].pool == 0 && found[0].request == OWNER);
  CHECK(found[0].moment == SERINUS_HEAD);
  CHECK(found[0].expected_digest != found[0].stored_digest);
  CHECK(found[0].layer == 0 && strcmp(found[0].segment, "rope") == 0);
  CHECK(found[0].num_events == 3); /* who had the slot, and what became of it */
  CHECK(found[0].events[0].kind == SERINUS_EVENT_ALLOC && found[0].events[0].owner == OWNER);
  CHECK(found[0].events[2].kind == SERINUS_EVENT_LOAD && found[0].events[2].step == 1);

  char line[512], cut[8];
  size_t needed = 0;
  CHECK_OK(serinus_violation_print(&found[0], "main", 0, line, sizeof line, &needed));
  CHECK(needed == strlen(line) + 1 && strstr(line, "kv_bytes") != NULL);
  CHECK(strstr(line, " events=alloc:7@0,store:@1,load:7@1") != NULL);
  CHECK_OK(serinus_violation_print(&found[0], "main", 1, cut, sizeof cut, &needed));
  CHECK(strlen(cut) == sizeof cut - 1 && cut[0] == '{' && needed > sizeof cut);

  serinus_slot tainted[4];
  uint32_t requests[4];
  size_t num_slots = 0, num_requests = 0;
  memset(tainted, 0, sizeof tainted);
  memset(requests, 0, sizeof requests);
  CHECK_OK(serinus_monitor_tainted(monitor, tainted, 4, &num_slots, requests, 4, &num_requests));
  CHECK(num_slots == 1 && tainted[0].slot == slots[2]);
  CHECK(num_requests == 1 && requests[0] == OWNER);

  serinus_monitor_stats stats = {.struct_size = sizeof stats};
  CHECK_OK(serinus_monitor_get_stats(monitor, &stats));
  CHECK(stats.steps == 2 && stats.records_written == TOKENS + 1 && stats.violations == 1);
  CHECK(stats.live_slots == TOKENS + 1 && stats.dropped == 0);

  /* Freed twice, once too often: said at the next poll. */
  CHECK_OK(serinus_monitor_on_free(monitor, 0, slots, 1, OWNER));
  CHECK_OK(serinus_monitor_on_free(monitor, 0, slots, 1, OWNER));
  CHECK_OK(serinus_monitor_poll(monitor, found, 4, &n));
  CHECK(n == 1 && (found[0].reasons & SERINUS_REASON_DOUBLE_OWNER) != 0);

  /* What C cannot promise is checked. */
  CHECK_FAILS(serinus_monitor_flush(NULL), SERINUS_VALUE_ERROR, "SRN6010");
  CHECK_FAILS(serinus_monitor_on_alloc(monitor, 0, NULL, 3, OWNER), SERINUS_VALUE_ERROR, "SRN6010");
  CHECK_FAILS(serinus_monitor_begin_step(monitor, NULL, NULL), SERINUS_VALUE_ERROR, "SRN6010");
  options.mode = 9;
  serinus_monitor* none = NULL;
  CHECK_FAILS(serinus_monitor_create(&options, &none), SERINUS_VALUE_ERROR, "SRN6012");
  CHECK(none == NULL);

  serinus_monitor_destroy(monitor);
  free(kv);
  return failures();
}
