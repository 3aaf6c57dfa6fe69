/* The C ABI of Serinus: plain structs, status codes, no exceptions. For engines in C, Rust, Go and
 * for bindings that must not depend on a C++ compiler's ABI.
 *
 * Conventions
 * - A call returns SERINUS_OK or says what went wrong; serinus_last_error() then has the error's
 *   id, its message and the argument at fault (one per thread). Outputs are untouched by a failed
 *   call.
 * - A struct that may grow begins with `struct_size`: set it to sizeof the struct, the rest to
 *   zero, then fill in (`serinus_monitor_options o = {.struct_size = sizeof o};`). A program built
 *   with an older header keeps working with a newer library; fields that the library does not
 *   know must be zero.
 * - A zero means the default wherever the comment gives one.
 * - Memory that is passed in belongs to the caller. Strings that come back are static unless noted.
 * - Handles are made by *_create and given back by *_destroy (null is fine). One thread at a time
 *   may use a handle, except where noted.
 * What the calls mean is documented where they are implemented in C++: serinus/sparse_mla.h,
 * serinus/canary.h, serinus/kv_layout.h, serinus/error.h.
 */
#ifndef SERINUS_C_H_
#define SERINUS_C_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Counts incompatible changes of this header. Compare with serinus_c_abi_version(). */
#define SERINUS_C_ABI_VERSION 2

uint32_t serinus_c_abi_version(void);
/* "major.minor.patch" */
const char* serinus_version(void);

/* ---- errors ----------------------------------------------------------------------------- */

typedef int32_t serinus_status;
enum {
  SERINUS_OK = 0,
  SERINUS_VALUE_ERROR = 1,   /* a value that the caller can mend */
  SERINUS_TYPE_ERROR = 2,    /* a dtype or kind that the call does not take */
  SERINUS_INPUT_ERROR = 3,   /* a file that cannot be read or written */
  SERINUS_RUNTIME_ERROR = 4, /* sound request, but this build, machine or state cannot serve it */
  SERINUS_NOT_IMPLEMENTED = 5,
  SERINUS_INTERNAL_ERROR = 6, /* a bug in Serinus */
  SERINUS_OUT_OF_MEMORY = 7
};

/* The last failure on this thread; never null, all strings "" before the first one. The strings
 * stay valid until the next failure on this thread. */
typedef struct serinus_error {
  serinus_status status;
  const char* id;       /* "SRN1001": a page of the error reference */
  const char* message;  /* "kv must be contiguous" */
  const char* argument; /* "kv", or "" */
  const char* value;    /* the offending value, or "" */
} serinus_error;
const serinus_error* serinus_last_error(void);

/* Text of known length, not terminated. */
typedef struct serinus_text {
  const char* data;
  size_t size;
} serinus_text;

/* A page of the error reference. Static. */
typedef struct serinus_error_page {
  serinus_text id, slug, title, message, exception, meaning, trigger;
  const serinus_text* situations;
  size_t num_situations;
  const serinus_text* solutions; /* in the order to try */
  size_t num_solutions;
  serinus_text example_before, example_after, guard;
} serinus_error_page;

/* All pages, ordered by id: 0 <= index < serinus_num_error_pages(); null outside. */
size_t serinus_num_error_pages(void);
const serinus_error_page* serinus_error_page_at(size_t index);
/* By id, by slug, or by a pasted error line; null if no page fits. */
const serinus_error_page* serinus_find_error(const char* text, size_t size);

/* ---- tensors ---------------------------------------------------------------------------- */

typedef uint8_t serinus_dtype;
enum {
  SERINUS_U8 = 0,
  SERINUS_I32 = 1,
  SERINUS_I64 = 2,
  SERINUS_U32 = 3,
  SERINUS_U64 = 4,
  SERINUS_F32 = 5,
  SERINUS_F64 = 6,
  SERINUS_BF16 = 7,
  SERINUS_E4M3 = 8
};

enum { SERINUS_CPU = 1, SERINUS_CUDA = 2 }; /* DLPack's codes */
#define SERINUS_MAX_RANK 6

/* A view; strides count elements. */
typedef struct serinus_tensor {
  void* data;
  serinus_dtype dtype;
  int32_t device_type; /* 0 = SERINUS_CPU */
  int32_t device_index;
  int32_t rank; /* 0 with null data: an absent tensor */
  int64_t shape[SERINUS_MAX_RANK];
  int64_t strides[SERINUS_MAX_RANK];
} serinus_tensor;

/* A dense row-major view on the CPU; set device_type and device_index afterwards for another
 * device. A rank beyond SERINUS_MAX_RANK is kept as it is, and refused by the call that gets the
 * tensor. */
serinus_tensor serinus_dense(void* data, serinus_dtype dtype, int32_t rank, const int64_t* shape);

/* ---- KV layouts ------------------------------------------------------------------------- */

typedef struct serinus_layout serinus_layout;

typedef struct serinus_layout_options {
  uint32_t struct_size;
  serinus_dtype dtype; /* mha_* only, where heads is not 0 */
  int64_t page_size;   /* 0 = the layout's usual page */
  int64_t heads;       /* mha_* only, required there */
  int64_t head_size;   /* mha_* only, required there; elements */
} serinus_layout_options;

/* A run of a token's bytes within a page: byte offset + token * token_stride, `bytes` long. */
typedef struct serinus_segment {
  const char* name; /* from a layout: lives as long as the layout */
  int32_t role;     /* 0 key, 1 value, 2 latent, 3 rope, 4 scale, 5 index_key, 6 index_scale */
  int32_t buffer;
  int64_t offset, token_stride, bytes;
  int32_t head; /* -1 where heads do not apply */
} serinus_segment;

typedef struct serinus_buffer {
  uint8_t* data;
  int64_t bytes;
  int64_t page_stride; /* 0 = the layout's dense page */
} serinus_buffer;

/* The names of the layouts: 0 <= index < serinus_num_layouts(); null outside. */
size_t serinus_num_layouts(void);
const char* serinus_layout_name_at(size_t index);

/* By name; `options` may be null. */
serinus_status serinus_layout_create(const char* name, const serinus_layout_options* options,
                                     serinus_layout** layout);
/* Of one's own: `page_bytes` has one entry a buffer. */
serinus_status serinus_layout_create_custom(const char* name, int64_t page_size,
                                            const int64_t* page_bytes, size_t num_buffers,
                                            const serinus_segment* segments, size_t num_segments,
                                            serinus_layout** layout);
void serinus_layout_destroy(serinus_layout* layout);

/* Getters; a null layout gives 0 or null. */
const char* serinus_layout_name(const serinus_layout* layout);
int64_t serinus_layout_page_size(const serinus_layout* layout);
int64_t serinus_layout_token_bytes(const serinus_layout* layout);
size_t serinus_layout_num_buffers(const serinus_layout* layout);
int64_t serinus_layout_page_bytes(const serinus_layout* layout, size_t buffer);
size_t serinus_layout_num_segments(const serinus_layout* layout);
serinus_status serinus_layout_segment(const serinus_layout* layout, size_t index,
                                      serinus_segment* segment);

/* ---- sparse MLA prefill ----------------------------------------------------------------- */

typedef struct serinus_sparse_mla_args {
  uint32_t struct_size;
  int32_t d_v;                       /* 0 = 512 */
  serinus_tensor q;                  /* [s_q, h_q, d_qk] e4m3 */
  serinus_tensor kv;                 /* [s_kv, 1, d_qk] e4m3 */
  serinus_tensor indices;            /* [s_q, 1, topk] int32 */
  serinus_tensor q_scale;            /* one float32 */
  serinus_tensor kv_scale;           /* one float32 */
  const serinus_tensor* attn_sink;   /* [h_q] float32, or null */
  const serinus_tensor* topk_length; /* [s_q] int32, or null */
  serinus_tensor out;                /* [s_q, h_q, d_v] bfloat16 */
  serinus_tensor max_logits;         /* [s_q, h_q] float32 */
  serinus_tensor lse;                /* [s_q, h_q] float32 */
  serinus_tensor workspace;          /* u8, at least serinus_sparse_mla_workspace_bytes() */
  float sm_scale;
  int32_t empty_row_lse_minus_inf; /* 0: lse of an empty row is +inf; 1: -inf */
  /* CPU: what P, the softmax weights, may be rounded to. 0 = SERINUS_F32; or SERINUS_BF16, which is
   * faster where the CPU has bf16 dot products (SparseMlaPrefill::p_dtype). */
  serinus_dtype p_dtype;
  uint8_t reserved[7];
} serinus_sparse_mla_args;

/* `stream` is a cudaStream_t, ignored on the CPU; `threads` concerns the CPU alone, 0 = all. */
serinus_status serinus_sparse_mla_prefill(const serinus_sparse_mla_args* args, void* stream,
                                          int32_t threads);
serinus_status serinus_sparse_mla_workspace_bytes(const serinus_sparse_mla_args* args,
                                                  size_t* bytes);
/* SERINUS_OK if serinus_sparse_mla_prefill would run; else the error that it would give. */
serinus_status serinus_sparse_mla_can_run(const serinus_sparse_mla_args* args);

/* ---- the canary ------------------------------------------------------------------------- */

typedef struct serinus_monitor serinus_monitor;

enum { SERINUS_FORMAT_SERINUS = 0, SERINUS_FORMAT_SGLANG = 1 };
enum { SERINUS_DEPTH_ALL = 0, SERINUS_DEPTH_PARTIAL = 1, SERINUS_DEPTH_NONE = 2 };
enum {
  SERINUS_MODE_LOG = 0,
  SERINUS_MODE_RAISE = 1, /* end_step returns SERINUS_RUNTIME_ERROR for what the step found */
  SERINUS_MODE_QUARANTINE = 2,
  SERINUS_MODE_NONE = 3
};
enum { SERINUS_VERIFY_ROLLING = 0, SERINUS_VERIFY_ALL = 1 };
enum { SERINUS_POOL_FULL = 0, SERINUS_POOL_SWA = 1, SERINUS_POOL_DRAFT = 2 };
enum { SERINUS_NULL_SLOT_CLEAN = 0, SERINUS_NULL_SLOT_SCRATCH = 1 };
enum { SERINUS_HEAD = 0, SERINUS_TAIL = 1, SERINUS_SWEEP = 2 };

/* Bits of serinus_violation.reasons. */
enum {
  SERINUS_REASON_TOKEN = 1,
  SERINUS_REASON_POSITION = 2,
  SERINUS_REASON_CHAIN = 4,
  SERINUS_REASON_KV_BYTES = 8,
  SERINUS_REASON_STALE = 16,
  SERINUS_REASON_FOREIGN_WRITE = 32,
  SERINUS_REASON_DOUBLE_OWNER = 64,
  SERINUS_REASON_OUT_OF_RANGE = 128,
  SERINUS_REASON_NULL_SLOT_DIRTY = 256,
  SERINUS_REASON_DIGEST_DIFFERS_ACROSS_RANKS = 512
};

typedef struct serinus_monitor_options {
  uint32_t struct_size;
  int32_t format, depth, mode, verify;
  int32_t threads;          /* 0 = 1 */
  int64_t records_per_step; /* rolling budget; 0 = the default */
  int64_t bytes_per_step;   /* rolling budget; 0 = the default */
  int64_t sweep_interval;   /* sglang format: steps; 0 = the default, -1 = never */
  int64_t ring_capacity;    /* 0 = the default */
  int32_t source_digests;   /* 1: a kv_bytes violation names the damaged layer and segment */
  int32_t reserved;
  int64_t event_capacity; /* ledger events kept a pool, for reports; 0 = the default, -1 = none */
  int64_t
      health_steps; /* steps without a check before it is a stall; 0 = the default, -1 = never */
} serinus_monitor_options;

typedef struct serinus_pool {
  uint32_t struct_size;
  int32_t kind;
  const char* name;              /* null = "kv" */
  const serinus_layout* layout;  /* copied */
  const serinus_buffer* buffers; /* layer-major; copied; none with SERINUS_DEPTH_NONE */
  size_t num_buffers;
  int64_t num_slots;
  int64_t window;             /* swa */
  const int64_t* full_to_swa; /* swa; the caller's, read at every check */
  size_t full_to_swa_size;
  int32_t num_layers; /* 0 = 1 */
  int32_t null_slot;
  int32_t token_offset; /* draft */
  int32_t reserved;
  /* Where buffers and full_to_swa lie; a monitor's pools all on one device. 0 = SERINUS_CPU */
  int32_t device_type;
  int32_t device_index;
  int64_t table_rows; /* SERINUS_CUDA: rows that on_attach may name; 0 = 4096 */
} serinus_pool;

/* One forward. The arrays are read during the call only; the two tables lie where the pools do. */
typedef struct serinus_batch {
  uint32_t struct_size;
  size_t num_pools; /* which pools this forward reads and writes; 0 = all */
  const int32_t* pools;
  size_t num_requests;
  const int64_t* rows; /* the next four: num_requests entries each */
  const int64_t* prefix_lens;
  const int64_t* extend_lens;
  const uint32_t* owners;
  serinus_tensor req_to_token; /* [rows, max_len] int32 */
  size_t num_tokens;           /* the sum of extend_lens; beyond it padding */
  const int64_t* input_ids;    /* the next three: num_tokens entries each */
  const int64_t* positions;
  const int64_t* out_cache_loc;
  serinus_tensor expected_tokens; /* [rows, max_len] int32, or absent */
  const int64_t* valid_lens;      /* num_requests entries, or null */
  const int64_t* parents;         /* tree drafts: num_tokens entries, or null */
} serinus_batch;

/* One forward whose arrays lie on a GPU, as its pools do: they are read in stream order, so such a
 * batch can be captured in a CUDA graph. [bs], [tokens]: one entry a request, a token. */
typedef struct serinus_device_batch {
  uint32_t struct_size;
  size_t num_pools;                        /* which pools this forward reads and writes; 0 = all */
  const int32_t* pools;                    /* on the host */
  serinus_tensor rows;                     /* [bs] int64; 0 = padding */
  serinus_tensor prefix_lens, extend_lens; /* [bs] int64 */
  serinus_tensor owners;                   /* [bs] uint32 or int32 */
  serinus_tensor req_to_token;             /* [rows, max_len] int32 */
  serinus_tensor input_ids, positions, out_cache_loc; /* [tokens] int64 */
  serinus_tensor expected_tokens;                     /* [rows, max_len] int32, or absent */
  serinus_tensor valid_lens;                          /* [bs] int64, or absent */
  serinus_tensor parents;                             /* [tokens] int64, or absent */
} serinus_device_batch;

/* 32 bytes a slot. */
typedef struct serinus_record {
  uint32_t token, position, owner, generation;
  uint64_t chain, kv_digest;
} serinus_record;

/* What was announced about a slot; "peer" is the taker of a transfer, the other slot of a move. */
enum {
  SERINUS_EVENT_ALLOC = 0,
  SERINUS_EVENT_FREE = 1,
  SERINUS_EVENT_TRANSFER = 2,
  SERINUS_EVENT_MOVED_FROM = 3,
  SERINUS_EVENT_MOVED_TO = 4,
  SERINUS_EVENT_STORE = 5,
  SERINUS_EVENT_LOAD = 6
};
typedef struct serinus_event {
  uint64_t step;
  int64_t peer; /* -1 = none */
  int32_t kind;
  uint32_t owner;
} serinus_event;
#define SERINUS_MAX_EVENTS 4

typedef struct serinus_violation {
  uint32_t reasons;
  int32_t moment, format, pool;
  int64_t slot;
  int64_t expected_position, stored_position;
  int64_t expected_token, stored_token;
  uint64_t expected_chain, stored_chain;
  uint64_t expected_digest, stored_digest;
  uint32_t expected_owner, stored_owner;
  uint32_t expected_generation, stored_generation;
  uint32_t request;
  int64_t row, prev_slot;
  uint64_t first_step, last_step, count;
  int32_t layer;    /* with source_digests: the first damaged layer; else -1 */
  char segment[60]; /* and the segment of the layout within it, terminated; else "" */
  uint64_t num_events;
  serinus_event events[SERINUS_MAX_EVENTS]; /* the slot's last ones, oldest first */
} serinus_violation;

typedef struct serinus_monitor_stats {
  uint32_t struct_size; /* set before the call */
  uint64_t steps, records_written, records_verified, bytes_digested, sweeps;
  uint64_t violations, sightings, dropped, skipped_empty;
  int64_t live_slots;
  int64_t sweep_bound_steps; /* every slot that is live now is checked again within so many steps */
  double seconds_head, seconds_tail, seconds_sweep;
} serinus_monitor_stats;

/* `options` may be null. */
serinus_status serinus_monitor_create(const serinus_monitor_options* options,
                                      serinus_monitor** monitor);
void serinus_monitor_destroy(serinus_monitor* monitor);

/* From the defaults, a JSON file (null: the one that SERINUS_CANARY_CONFIG names, if it is set) and
 * the environment; violations go to the file that they name, if they do. */
serinus_status serinus_monitor_create_configured(const char* config_file,
                                                 serinus_monitor** monitor);

/* `number`, which may be null, gets the pool's number: 0, 1, ... */
serinus_status serinus_monitor_add_pool(serinus_monitor* monitor, const serinus_pool* pool,
                                        int32_t* number);

/* The pool's memory is about to go: it is not read any more, nor may it be named any more. */
serinus_status serinus_monitor_detach_pool(serinus_monitor* monitor, int32_t pool);

serinus_status serinus_monitor_on_alloc(serinus_monitor* monitor, int32_t pool,
                                        const int64_t* slots, size_t n, uint32_t owner);
/* `owner` 0: whoever holds them. */
serinus_status serinus_monitor_on_free(serinus_monitor* monitor, int32_t pool, const int64_t* slots,
                                       size_t n, uint32_t owner);
serinus_status serinus_monitor_on_transfer(serinus_monitor* monitor, int32_t pool,
                                           const int64_t* slots, size_t n, uint32_t from,
                                           uint32_t to);
serinus_status serinus_monitor_on_attach(serinus_monitor* monitor, uint32_t owner, int64_t row,
                                         int64_t begin, int64_t end);
serinus_status serinus_monitor_on_release(serinus_monitor* monitor, uint32_t owner);
serinus_status serinus_monitor_on_move(serinus_monitor* monitor, int32_t pool, const int64_t* from,
                                       const int64_t* to, size_t n);
/* `records` has room for n. `source_digests` may be null; else it has room for
 * n * serinus_monitor_num_sources(). */
serinus_status serinus_monitor_on_store(serinus_monitor* monitor, int32_t pool,
                                        const int64_t* slots, size_t n, serinus_record* records,
                                        uint32_t* source_digests);
serinus_status serinus_monitor_on_load(serinus_monitor* monitor, int32_t pool,
                                       const serinus_record* records,
                                       const uint32_t* source_digests, const int64_t* slots,
                                       size_t n, uint32_t owner);
serinus_status serinus_monitor_num_sources(serinus_monitor* monitor, int32_t pool, int64_t* n);

serinus_status serinus_monitor_begin_step(serinus_monitor* monitor, const serinus_batch* batch,
                                          void* stream);
serinus_status serinus_monitor_end_step(serinus_monitor* monitor, const serinus_batch* batch,
                                        void* stream);

/* The same for a batch on a GPU. While `stream` is captured, these two are launches into the graph
 * and nothing else; begin_replay() then comes before each launch of it. */
serinus_status serinus_monitor_begin_step_on_device(serinus_monitor* monitor,
                                                    const serinus_device_batch* batch,
                                                    void* stream);
serinus_status serinus_monitor_end_step_on_device(serinus_monitor* monitor,
                                                  const serinus_device_batch* batch, void* stream);
serinus_status serinus_monitor_begin_replay(serinus_monitor* monitor,
                                            const serinus_device_batch* batch, void* stream);

/* Verifies the cells [begin, end) of one request now, outside the budget. */
serinus_status serinus_monitor_verify_now(serinus_monitor* monitor, int32_t moment, uint32_t owner,
                                          int64_t row, int64_t begin, int64_t end,
                                          const serinus_batch* tables);
/* Digest over what this rank has cached for a row; unequal ones of several ranks are a violation.
 */
serinus_status serinus_monitor_request_digest(serinus_monitor* monitor, int64_t row, int64_t length,
                                              const serinus_batch* tables, uint64_t* digest);
/* Pools on a GPU: what `pool` holds of each request of the batch, its first prefix_lens cells, as a
 * launch: into `digests`, uint8 [bs, 32] there, serinus_request_digest. After begin_step. */
serinus_status serinus_monitor_request_digests(serinus_monitor* monitor, int32_t pool,
                                               const serinus_device_batch* batch,
                                               const serinus_tensor* digests, void* stream);
serinus_status serinus_monitor_on_rank_digests(serinus_monitor* monitor, uint32_t owner,
                                               int64_t row, const uint64_t* digests, size_t n);

/* Takes up to `capacity` violations, oldest first; *n gets how many. What does not fit stays for
 * the next call. From any thread. */
serinus_status serinus_monitor_poll(serinus_monitor* monitor, serinus_violation* violations,
                                    size_t capacity, size_t* n);
/* Pools on a GPU: waits for the checks launched so far; poll then has what they found. */
serinus_status serinus_monitor_wait(serinus_monitor* monitor);
serinus_status serinus_monitor_flush(serinus_monitor* monitor);

/* Violations are appended to `path` as JSON lines, from a thread of the library's; null: no more.
 */
serinus_status serinus_monitor_log_to(serinus_monitor* monitor, const char* path);
/* The last things announced about a slot, at most `capacity`, oldest first. From any thread. */
serinus_status serinus_monitor_events(serinus_monitor* monitor, int32_t pool, int64_t slot,
                                      serinus_event* events, size_t capacity, size_t* n);

typedef struct serinus_stall {
  int32_t moment, pool;
  uint64_t since_step;
} serinus_stall;
/* Checks that stopped running. *n gets how many there are, which may be more than fit. From any
 * thread. */
serinus_status serinus_monitor_health(serinus_monitor* monitor, serinus_stall* stalls,
                                      size_t capacity, size_t* n);

/* Writes a dump of all attached pools, with the KV bytes or without. */
serinus_status serinus_monitor_dump(serinus_monitor* monitor, const char* path, int32_t with_bytes);
/* Checks a dump; *n gets how many violations there are, which may be more than fit. */
serinus_status serinus_scan(const char* path, serinus_violation* violations, size_t capacity,
                            size_t* n);

typedef struct serinus_slot {
  int32_t pool;
  int64_t slot;
} serinus_slot;

/* SERINUS_MODE_QUARANTINE: takes up to `slot_capacity` slots and `request_capacity` requests that a
 * violation touched; what does not fit stays for the next call. */
serinus_status serinus_monitor_tainted(serinus_monitor* monitor, serinus_slot* slots,
                                       size_t slot_capacity, size_t* num_slots, uint32_t* requests,
                                       size_t request_capacity, size_t* num_requests);
/* From any thread. */
serinus_status serinus_monitor_get_stats(serinus_monitor* monitor, serinus_monitor_stats* stats);

/* The violation as one line of text (json = 0) or one JSON object (json = 1), terminated. *needed
 * gets the bytes with the terminator; where `capacity` is less, the text is cut. */
serinus_status serinus_violation_print(const serinus_violation* violation, const char* pool_name,
                                       int32_t json, char* text, size_t capacity, size_t* needed);

/* ---- several machines ------------------------------------------------------------------- */

/* What the two sides of a transfer of KV with records must agree on: 112 bytes to exchange. */
typedef struct serinus_transfer_terms {
  uint32_t version, record_version, format, depth;
  int64_t num_layers, token_bytes, page_size;
  uint64_t layout_hash;
  char layout[64];
} serinus_transfer_terms;
serinus_status serinus_monitor_transfer_terms(serinus_monitor* monitor, int32_t pool,
                                              serinus_transfer_terms* terms);
/* SERINUS_VALUE_ERROR where they do not fit; the message says in what. */
serinus_status serinus_check_transfer(const serinus_transfer_terms* mine,
                                      const serinus_transfer_terms* theirs);

/* What a rank has cached for a request: 32 bytes to gather. */
typedef struct serinus_request_digest {
  uint32_t version, owner;
  int64_t length;
  uint64_t chain, kv;
} serinus_request_digest;
serinus_status serinus_monitor_rank_digest(serinus_monitor* monitor, int32_t pool, uint32_t owner,
                                           int64_t row, int64_t length,
                                           const serinus_tensor* req_to_token,
                                           serinus_request_digest* digest);

typedef struct serinus_rank_difference {
  int32_t rank;
  uint32_t owner;
  int64_t request; /* index within a rank's digests */
  /* 0 or 1; owner_differs: or the version of the digest */
  int32_t owner_differs, length_differs, chain_differs, kv_differs;
} serinus_rank_difference;
/* `gathered` is rank-major: num_ranks * num_requests. With a monitor each request that differs is
 * also a violation there (it may be null). *n gets how many differences there are, which may be
 * more than fit. */
serinus_status serinus_compare_ranks(serinus_monitor* monitor,
                                     const serinus_request_digest* gathered, int32_t num_ranks,
                                     size_t num_requests, int32_t compare_kv,
                                     serinus_rank_difference* differences, size_t capacity,
                                     size_t* n);

/* Versions of the byte formats that outlive a process. */
uint32_t serinus_record_version(void);
uint32_t serinus_dump_version(void);

#ifdef __cplusplus
}
#endif

#endif /* SERINUS_C_H_ */
