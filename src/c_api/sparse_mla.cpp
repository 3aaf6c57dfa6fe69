// Sparse MLA prefill for C.
#include <cstddef>
#include <cstdint>

#include <serinus/error.h>
#include <serinus/sparse_mla.h>
#include <serinus_c.h>

#include "c_api/call.h"

using namespace serinus;

namespace {

SparseMlaPrefill arguments(const serinus_sparse_mla_args* pointer) {
  constexpr std::size_t kFirst = offsetof(serinus_sparse_mla_args, p_dtype);
  const serinus_sparse_mla_args a = c_api::read_struct("args", pointer, kFirst);
  SparseMlaPrefill p;
  p.q = c_api::tensor("q", a.q);
  p.kv = c_api::tensor("kv", a.kv);
  p.indices = c_api::tensor("indices", a.indices);
  p.sm_scale = a.sm_scale;
  p.q_scale = c_api::tensor("q_scale", a.q_scale);
  p.kv_scale = c_api::tensor("kv_scale", a.kv_scale);
  if (a.d_v != 0) p.d_v = a.d_v;
  if (a.attn_sink != nullptr) p.attn_sink = c_api::tensor("attn_sink", *a.attn_sink);
  if (a.topk_length != nullptr) p.topk_length = c_api::tensor("topk_length", *a.topk_length);
  p.out = c_api::tensor("out", a.out);
  p.max_logits = c_api::tensor("max_logits", a.max_logits);
  p.lse = c_api::tensor("lse", a.lse);
  p.workspace = c_api::tensor("workspace", a.workspace);
  p.empty_row_lse = c_api::one_of("empty_row_lse_minus_inf", a.empty_row_lse_minus_inf,
                                  {EmptyRowLse::plus_inf, EmptyRowLse::minus_inf});
  if (a.p_dtype != 0) p.p_dtype = c_api::dtype("p_dtype", a.p_dtype);
  return p;
}

// can_run() names the error; its page knows the class.
serinus_status status_of(const CanRun& answer) {
  const ErrorEntry* page = find_error(answer.error_id);
  const std::string_view exception = page == nullptr ? "" : page->exception;
  const serinus_status status = exception == "ValueError"            ? SERINUS_VALUE_ERROR
                                : exception == "TypeError"           ? SERINUS_TYPE_ERROR
                                : exception == "RuntimeError"        ? SERINUS_RUNTIME_ERROR
                                : exception == "NotImplementedError" ? SERINUS_NOT_IMPLEMENTED
                                                                     : SERINUS_INTERNAL_ERROR;
  return c_api::remember(status, answer.error_id, answer.message, {}, {});
}

}  // namespace

serinus_status serinus_sparse_mla_prefill(const serinus_sparse_mla_args* args, void* stream,
                                          int32_t threads) {
  return c_api::call([&] { sparse_mla_prefill(arguments(args), Stream{stream}, threads); });
}

serinus_status serinus_sparse_mla_workspace_bytes(const serinus_sparse_mla_args* args,
                                                  size_t* bytes) {
  return c_api::call(
      [&] { c_api::required("bytes", bytes) = sparse_mla_workspace_bytes(arguments(args)); });
}

serinus_status serinus_sparse_mla_can_run(const serinus_sparse_mla_args* args) {
  CanRun answer;
  const serinus_status read = c_api::call([&] { answer = can_run(arguments(args)); });
  if (read != SERINUS_OK || answer) return read;
  return status_of(answer);
}
