/* Sparse MLA prefill from C: a case whose answer is known by hand, and what wrong arguments get. */
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <serinus_c.h>

#include "check.h"

enum { S_Q = 2, H_Q = 3, D = 576, D_V = 512, S_KV = 4, TOPK = 2 };

static const uint8_t kOne = 0x38, kTwo = 0x40; /* 1.0 and 2.0 in e4m3 */

static uint8_t q[S_Q * H_Q * D], kv[S_KV * D];
static int32_t indices[S_Q * TOPK];
static float one = 1.0f, sink[H_Q];
static uint16_t out[S_Q * H_Q * D_V];
static float max_logits[S_Q * H_Q], lse[S_Q * H_Q];

static float bf16(uint16_t bits) {
  const uint32_t wide = (uint32_t)bits << 16;
  float f;
  memcpy(&f, &wide, sizeof f);
  return f;
}

/* Row r of kv is all ones, but for row 2, which is all twos. */
static serinus_sparse_mla_args arguments(void) {
  memset(q, kOne, sizeof q);
  memset(kv, kOne, sizeof kv);
  memset(kv + 2 * D, kTwo, D);
  const int32_t rows[S_Q * TOPK] = {0, 1, 2, -1};
  memcpy(indices, rows, sizeof rows);
  const int64_t q_shape[3] = {S_Q, H_Q, D}, kv_shape[3] = {S_KV, 1, D};
  const int64_t indices_shape[3] = {S_Q, 1, TOPK}, out_shape[3] = {S_Q, H_Q, D_V}, n[1] = {1};
  serinus_sparse_mla_args a = {.struct_size = sizeof a};
  a.q = serinus_dense(q, SERINUS_E4M3, 3, q_shape);
  a.kv = serinus_dense(kv, SERINUS_E4M3, 3, kv_shape);
  a.indices = serinus_dense(indices, SERINUS_I32, 3, indices_shape);
  a.q_scale = serinus_dense(&one, SERINUS_F32, 1, n);
  a.kv_scale = serinus_dense(&one, SERINUS_F32, 1, n);
  a.out = serinus_dense(out, SERINUS_BF16, 3, out_shape);
  a.max_logits = serinus_dense(max_logits, SERINUS_F32, 2, out_shape);
  a.lse = serinus_dense(lse, SERINUS_F32, 2, out_shape);
  a.sm_scale = 0.01f;
  return a;
}

/* What the call asks for; null where it asks for nothing. */
static void* workspace(serinus_sparse_mla_args* a) {
  size_t bytes = 0;
  CHECK_OK(serinus_sparse_mla_workspace_bytes(a, &bytes));
  void* memory = bytes == 0 ? NULL : malloc(bytes);
  const int64_t shape[1] = {(int64_t)bytes};
  a->workspace = serinus_dense(memory, SERINUS_U8, 1, shape);
  return memory;
}

int main(void) {
  serinus_sparse_mla_args a = arguments();
  void* memory = workspace(&a);
  CHECK_OK(serinus_sparse_mla_can_run(&a));
  CHECK_OK(serinus_sparse_mla_prefill(&a, NULL, 1));
  for (int h = 0; h < H_Q; ++h) {
    /* Query 0: two rows of ones, logits 0.01 * 576 each. Query 1: the row of twos alone. */
    CHECK(fabsf(max_logits[h] - 5.76f) < 1e-3f);
    CHECK(fabsf(lse[h] - (5.76f + logf(2.0f))) < 1e-3f);
    CHECK(fabsf(bf16(out[h * D_V]) - 1.0f) < 1e-2f);
    CHECK(fabsf(max_logits[H_Q + h] - 11.52f) < 1e-3f);
    CHECK(fabsf(lse[H_Q + h] - 11.52f) < 1e-3f);
    CHECK(fabsf(bf16(out[(H_Q + h) * D_V + D_V - 1]) - 2.0f) < 1e-2f);
  }

  /* A sink of +inf makes out zero and leaves lse alone. */
  for (int h = 0; h < H_Q; ++h) sink[h] = INFINITY;
  const int64_t heads[1] = {H_Q};
  const serinus_tensor sink_tensor = serinus_dense(sink, SERINUS_F32, 1, heads);
  a.attn_sink = &sink_tensor;
  CHECK_OK(serinus_sparse_mla_prefill(&a, NULL, 2));
  CHECK(out[0] == 0 && fabsf(lse[0] - (5.76f + logf(2.0f))) < 1e-3f);
  a.attn_sink = NULL;

  /* A row with nothing valid: the convention is the caller's. */
  indices[2] = S_KV;
  CHECK_OK(serinus_sparse_mla_prefill(&a, NULL, 1));
  CHECK(isinf(lse[H_Q]) && lse[H_Q] > 0 && out[H_Q * D_V] == 0);
  a.empty_row_lse_minus_inf = 1;
  CHECK_OK(serinus_sparse_mla_prefill(&a, NULL, 1));
  CHECK(isinf(lse[H_Q]) && lse[H_Q] < 0);

  /* What is wrong is named, by both calls alike, and outputs stay. */
  memset(out, 0x55, sizeof out);
  a.kv.dtype = SERINUS_BF16;
  const serinus_status refused = serinus_sparse_mla_can_run(&a);
  CHECK(refused != SERINUS_OK);
  char said[256];
  snprintf(said, sizeof said, "%s", serinus_last_error()->message);
  CHECK(strstr(said, "kv") != NULL);
  CHECK(serinus_sparse_mla_prefill(&a, NULL, 1) == refused);
  CHECK(strcmp(serinus_last_error()->message, said) == 0);
  CHECK(out[0] == 0x5555);
  CHECK_FAILS(serinus_sparse_mla_prefill(NULL, NULL, 1), SERINUS_VALUE_ERROR, "SRN6010");
  a.kv.dtype = SERINUS_E4M3;

  /* P may be bf16, and nothing else but float32. */
  a.p_dtype = SERINUS_BF16;
  CHECK_OK(serinus_sparse_mla_prefill(&a, NULL, 1));
  CHECK(fabsf(bf16(out[0]) - 1.0f) < 1e-2f);
  a.p_dtype = SERINUS_I32;
  CHECK_FAILS(serinus_sparse_mla_can_run(&a), SERINUS_VALUE_ERROR, "SRN1004");

  /* The struct as the first version had it, before p_dtype: what lies behind is not read. */
  a.struct_size = offsetof(serinus_sparse_mla_args, p_dtype);
  CHECK_OK(serinus_sparse_mla_can_run(&a));
  CHECK_OK(serinus_sparse_mla_prefill(&a, NULL, 1));
  a.struct_size -= 1;
  CHECK_FAILS(serinus_sparse_mla_can_run(&a), SERINUS_VALUE_ERROR, "SRN6011");
  a.struct_size = 8;
  CHECK_FAILS(serinus_sparse_mla_can_run(&a), SERINUS_VALUE_ERROR, "SRN6011");
  free(memory);
  return failures();
}
