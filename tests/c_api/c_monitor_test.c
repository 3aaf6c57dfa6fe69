/* What surrounds the canary's checks, from C: configuration, evidence, dumps, several machines. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <serinus_c.h>

#include "check.h"

enum { PAGE = 64, SLOTS = 2 * PAGE, OWNER = 7 };

static int32_t table[2][16];
static uint8_t kv[2][SLOTS * 656];

static serinus_status step(serinus_monitor* m, int64_t prefix, int64_t n, const int64_t* ids,
                           const int64_t* positions, const int64_t* out, const int64_t* parents) {
  const int64_t row = 1, shape[2] = {2, 16};
  const uint32_t owner = OWNER;
  serinus_batch b = {.struct_size = sizeof b};
  b.num_requests = 1;
  b.rows = &row;
  b.prefix_lens = &prefix;
  b.extend_lens = &n;
  b.owners = &owner;
  b.req_to_token = serinus_dense(table, SERINUS_I32, 2, shape);
  b.num_tokens = (size_t)n;
  b.input_ids = ids;
  b.positions = positions;
  b.out_cache_loc = out;
  b.parents = parents;
  const serinus_status begun = serinus_monitor_begin_step(m, &b, NULL);
  return begun != SERINUS_OK ? begun : serinus_monitor_end_step(m, &b, NULL);
}

static serinus_monitor* monitor_with_pool(int number, const char* config) {
  serinus_monitor* m = NULL;
  CHECK_OK(serinus_monitor_create_configured(config, &m));
  serinus_layout* layout = NULL;
  CHECK_OK(serinus_layout_create("fp8_656", NULL, &layout));
  const serinus_buffer buffer = {kv[number], sizeof kv[number], 0};
  serinus_pool pool = {.struct_size = sizeof pool};
  pool.layout = layout;
  pool.buffers = &buffer;
  pool.num_buffers = 1;
  pool.num_slots = SLOTS;
  pool.device_type = 3;
  CHECK_FAILS(serinus_monitor_add_pool(m, &pool, NULL), SERINUS_VALUE_ERROR, "SRN6012");
  pool.struct_size = offsetof(serinus_pool, device_type); /* as a program built before it says */
  CHECK_OK(serinus_monitor_add_pool(m, &pool, NULL));
  serinus_layout_destroy(layout);
  return m;
}

int main(void) {
  char folder[] = "/tmp/serinus_c_XXXXXX", config[64], lines[64], dump[64];
  CHECK(mkdtemp(folder) != NULL);
  snprintf(config, sizeof config, "%s/canary.json", folder);
  snprintf(lines, sizeof lines, "%s/violations.jsonl", folder);
  snprintf(dump, sizeof dump, "%s/pool.dump", folder);
  FILE* f = fopen(config, "w");
  fputs("{\"verify\":\"all\",\"source_digests\":true}", f);
  fclose(f);

  CHECK(serinus_record_version() == 1 && serinus_dump_version() == 1);
  serinus_monitor* none = NULL;
  CHECK_FAILS(serinus_monitor_create_configured("/nonexistent.json", &none), SERINUS_INPUT_ERROR,
              "SRN4101");
  serinus_monitor* a = monitor_with_pool(0, config);
  serinus_monitor* b = monitor_with_pool(1, config);

  /* A prefix, then a tree of drafts: 3, 4 both follow the prefix, 5 follows 4. */
  const int64_t slots[6] = {10, 11, 20, 21, 22, 70}, ids[5] = {1, 2, 3, 4, 5};
  const int64_t positions[5] = {0, 1, 2, 2, 3}, parents[3] = {-1, -1, 1};
  for (int i = 0; i < 6; ++i) table[1][i] = (int32_t)slots[i];
  serinus_monitor* both[2] = {a, b};
  for (int i = 0; i < 2; ++i) {
    CHECK_OK(serinus_monitor_on_alloc(both[i], 0, slots, 6, OWNER));
    CHECK_OK(step(both[i], 0, 2, ids, positions, slots, NULL));
    CHECK_OK(step(both[i], 2, 3, ids + 2, positions + 2, slots + 2, parents));
  }
  table[1][2] = 21; /* 4 and 5 are accepted */
  table[1][3] = 22;
  CHECK_OK(step(a, 4, 0, NULL, NULL, NULL, NULL));
  serinus_violation found[4];
  size_t n = 9;
  CHECK_OK(serinus_monitor_poll(a, found, 4, &n));
  CHECK(n == 0);

  /* Two ranks of a model. */
  const int64_t shape[2] = {2, 16};
  const serinus_tensor view = serinus_dense(table, SERINUS_I32, 2, shape);
  serinus_request_digest digests[2];
  CHECK_OK(serinus_monitor_rank_digest(a, 0, OWNER, 1, 4, &view, &digests[0]));
  CHECK_OK(serinus_monitor_rank_digest(b, 0, OWNER, 1, 4, &view, &digests[1]));
  serinus_rank_difference differences[2];
  CHECK_OK(serinus_compare_ranks(NULL, digests, 2, 1, 1, differences, 2, &n));
  CHECK(n == 0);
  CHECK_OK(serinus_monitor_rank_digest(b, 0, OWNER, 1, 3, &view, &digests[1]));
  CHECK_OK(serinus_compare_ranks(a, digests, 2, 1, 1, differences, 2, &n));
  CHECK(n == 1 && differences[0].rank == 1 && differences[0].length_differs == 1);
  CHECK_OK(serinus_monitor_poll(a, found, 4, &n));
  CHECK(n == 1 && found[0].reasons == SERINUS_REASON_DIGEST_DIFFERS_ACROSS_RANKS);

  CHECK_FAILS(serinus_compare_ranks(NULL, digests, 2, SIZE_MAX / 2 + 1, 1, differences, 2, &n),
              SERINUS_OUT_OF_MEMORY, "SRN6003"); /* 2 * 2^63 is not 0 */
  serinus_record record;
  CHECK_FAILS(serinus_monitor_on_store(a, 0, slots, SIZE_MAX / 2, &record, NULL),
              SERINUS_OUT_OF_MEMORY, "SRN6003");
  /* What was on the stack is no size, even if only zeros follow. */
  union {
    serinus_monitor_options options;
    unsigned char bytes[65536];
  } vast;
  memset(&vast, 0, sizeof vast);
  vast.options.struct_size = sizeof vast;
  CHECK_FAILS(serinus_monitor_create(&vast.options, &none), SERINUS_VALUE_ERROR, "SRN6011");

  /* Two sides of a transfer. */
  serinus_transfer_terms mine, theirs;
  CHECK_OK(serinus_monitor_transfer_terms(a, 0, &mine));
  CHECK_OK(serinus_monitor_transfer_terms(b, 0, &theirs));
  CHECK_OK(serinus_check_transfer(&mine, &theirs));
  CHECK(mine.token_bytes == 656 && strcmp(mine.layout, "fp8_656") == 0);
  theirs.depth = 1;
  CHECK_FAILS(serinus_check_transfer(&mine, &theirs), SERINUS_VALUE_ERROR, "SRN3031");

  /* A fault, as a line in a file, with its slot's history; and a dump that shows it. */
  CHECK_OK(serinus_monitor_log_to(a, lines));
  kv[0][21 * 656 + 600] ^= 1;
  CHECK_OK(step(a, 4, 0, NULL, NULL, NULL, NULL));
  CHECK_OK(serinus_monitor_log_to(a, NULL)); /* writes what waits */
  char line[4096] = "";
  f = fopen(lines, "r");
  CHECK(f != NULL && fgets(line, sizeof line, f) != NULL);
  if (f != NULL) fclose(f);
  CHECK(strstr(line, "\"slot\":21,") != NULL && strstr(line, "\"event\":\"alloc\"") != NULL);
  serinus_event events[2];
  CHECK_OK(serinus_monitor_events(a, 0, 21, events, 2, &n));
  CHECK(n == 1 && events[0].kind == SERINUS_EVENT_ALLOC && events[0].owner == OWNER);
  CHECK_OK(serinus_monitor_dump(a, dump, 1));
  CHECK_OK(serinus_scan(dump, found, 4, &n));
  CHECK(n == 1 && found[0].slot == 21 && strcmp(found[0].segment, "rope") == 0);
  CHECK_OK(serinus_monitor_dump(a, dump, 0));
  CHECK_OK(serinus_scan(dump, NULL, 0, &n));
  CHECK(n == 0);
  CHECK_FAILS(serinus_scan(config, NULL, 0, &n), SERINUS_INPUT_ERROR, "SRN4401");

  /* Health, and a pool that goes. */
  serinus_stall stalls[4];
  CHECK_OK(serinus_monitor_health(a, stalls, 4, &n));
  CHECK(n == 0);
  for (int i = 0; i < 10000; ++i) CHECK_OK(serinus_monitor_on_free(b, 0, slots + 5, 1, 0));
  CHECK_OK(serinus_monitor_health(b, stalls, 1, &n));
  CHECK(n == 3 && stalls[0].moment == SERINUS_HEAD && stalls[0].pool == 0);
  CHECK_OK(serinus_monitor_detach_pool(a, 0));
  CHECK_FAILS(serinus_monitor_detach_pool(a, 0), SERINUS_VALUE_ERROR, "SRN3005");

  serinus_monitor_destroy(a);
  serinus_monitor_destroy(b);
  unlink(config);
  unlink(lines);
  unlink(dump);
  rmdir(folder);
  return failures();
}
