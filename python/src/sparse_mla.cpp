// The prefill, and the checks of SGLang's function of the same kind. A call's arguments come as one
// tuple, in the order of the public signature: q, kv, indices, sm_scale, q_scale, kv_scale, d_v,
// attn_sink, topk_length, out, max_logits, lse.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <string>

#include <serinus/error.h>
#include <serinus/sparse_mla.h>

#include "bind.h"
#include "sparse_mla/check.h"
#include "tensor.h"

namespace serinus::python {

namespace {

struct Call {
  Tensors tensors;  ///< keeps alive what the views of `args` look at
  SparseMlaPrefill args;
};

// Numbers and optional tensors, which both contracts read alike.
void view_common(Call& call, const nb::tuple& in) {
  SparseMlaPrefill& a = call.args;
  a.sm_scale = static_cast<float>(nb::cast<double>(in[3]));
  std::int64_t d_v = -1;
  nb::try_cast(in[6], d_v);
  a.d_v = d_v == static_cast<int>(d_v) ? static_cast<int>(d_v) : -1;  // no size that a door takes
  a.attn_sink = call.tensors.take_optional("attn_sink", in[7]);
  a.topk_length = call.tensors.take_optional("topk_length", in[8]);
}

// FP8 also as uint8, bfloat16 also as uint16.
void view_native(Call& call, const nb::tuple& in, nb::handle workspace, bool minus_inf) {
  SparseMlaPrefill& a = call.args;
  Tensors& t = call.tensors;
  a.q = relabelled(t.take("q", in[0]), DType::u8, DType::e4m3);
  a.kv = relabelled(t.take("kv", in[1]), DType::u8, DType::e4m3);
  a.indices = t.take("indices", in[2]);
  a.q_scale = t.take("q_scale", in[4]);
  a.kv_scale = t.take("kv_scale", in[5]);
  view_common(call, in);
  a.out = relabelled(t.take_or_absent("out", in[9], Access::write), DType::u16, DType::bf16);
  a.max_logits = t.take_or_absent("max_logits", in[10], Access::write);
  a.lse = t.take_or_absent("lse", in[11], Access::write);
  a.workspace = t.take_or_absent("workspace", workspace, Access::write);
  a.empty_row_lse = minus_inf ? EmptyRowLse::minus_inf : EmptyRowLse::plus_inf;
}

void prefill(const nb::tuple& in, nb::handle workspace, bool minus_inf, bool bf16_p,
             nb::handle stream, int threads) {
  Call call;
  view_native(call, in, workspace, minus_inf);
  if (bf16_p) call.args.p_dtype = DType::bf16;
  const Stream s = stream_for(stream, in[0], call.args.q.device);
  const nb::gil_scoped_release release;
  sparse_mla_prefill(call.args, s, threads);
}

// Shapes alone decide; nothing else needs to be right yet.
std::size_t workspace_bytes(nb::handle q, nb::handle kv, nb::handle indices) {
  Tensors t;
  SparseMlaPrefill a;
  a.q = t.take("q", q);
  a.kv = t.take("kv", kv);
  a.indices = t.take("indices", indices);
  if (a.q.rank != 3 || a.kv.rank != 3 || a.indices.rank != 3) return 0;  // the call itself objects
  return sparse_mla_workspace_bytes(a);
}

// Views in the place of outputs that would be allocated: addresses apart, never touched.
void stand_in_for_outputs(SparseMlaPrefill& a) {
  if (a.q.rank != 3 || a.kv.rank != 3 || a.indices.rank != 3) return;
  std::uintptr_t at = 1u << 20;
  const auto fill = [&](TensorView& t, DType dtype, std::initializer_list<std::int64_t> shape) {
    if (t.data != nullptr || t.rank != 0) return;
    // NOLINTNEXTLINE(performance-no-int-to-ptr): it is asked where they may lie, nothing is read
    t = TensorView(reinterpret_cast<void*>(at), dtype, shape, a.q.device);
    at += static_cast<std::uintptr_t>(t.numel() * size_of(dtype) + 15) / 16 * 16;
  };
  fill(a.out, DType::bf16, {a.q.shape[0], a.q.shape[1], a.d_v});
  fill(a.max_logits, DType::f32, {a.q.shape[0], a.q.shape[1]});
  fill(a.lse, DType::f32, {a.q.shape[0], a.q.shape[1]});
  fill(a.workspace, DType::u8, {static_cast<std::int64_t>(sparse_mla_workspace_bytes(a))});
}

void check(const nb::tuple& in) {
  Call call;
  view_native(call, in, nb::none(), false);
  stand_in_for_outputs(call.args);
  sparse_mla::check(call.args);
}

nb::tuple can_run_prefill(const nb::tuple& in, nb::handle workspace) {
  CanRun answer;
  try {
    Call call;
    view_native(call, in, workspace, false);
    stand_in_for_outputs(call.args);
    answer = can_run(call.args);
  } catch (const Error& e) {
    answer = {false, e.id(), e.what()};
  }
  return nb::make_tuple(answer.ok, answer.error_id, answer.message);
}

void check_sglang_prefill(const nb::tuple& in) {
  Call call;
  Tensors& t = call.tensors;
  call.args.q = t.take("q", in[0]);
  call.args.kv = t.take("kv", in[1]);
  call.args.indices = t.take("indices", in[2]);
  call.args.q_scale = t.take_or_absent("q_scale", in[4]);
  call.args.kv_scale = t.take_or_absent("kv_scale", in[5]);
  view_common(call, in);
  call.args.out = t.take_or_absent("out", in[9], Access::write);
  call.args.max_logits = t.take_or_absent("max_logits", in[10], Access::write);
  call.args.lse = t.take_or_absent("lse", in[11], Access::write);
  check_sglang_contract(call.args);
}

}  // namespace

void bind_sparse_mla(nb::module_& m) {
  using namespace nb::literals;
  m.def("sparse_mla_prefill", &prefill, "call"_a, "workspace"_a.none(), "minus_inf"_a, "bf16_p"_a,
        "stream"_a.none(), "threads"_a);
  // Refuses what the call would refuse; outputs may be missing.
  m.def("sparse_mla_check", &check);
  m.def("sparse_mla_workspace_bytes", &workspace_bytes, "q"_a.none(), "kv"_a.none(),
        "indices"_a.none());
  m.def("sparse_mla_can_run", &can_run_prefill, "call"_a, "workspace"_a.none());
  m.def("check_sglang_prefill", &check_sglang_prefill);
}

}  // namespace serinus::python
