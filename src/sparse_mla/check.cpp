#include "sparse_mla/check.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <limits>
#include <string>

#include "base/checks.h"
#include "base/raise.h"

namespace serinus {

namespace {

using errors::Page;

std::string text(std::int64_t n) {
  return std::to_string(n);
}

void require_size(bool holds, const char* name, const char* want, std::int64_t got) {
  if (holds) return;
  raise(Page::sparse_mla_unsupported_size, {{"name", name}, {"want", want}, {"got", text(got)}});
}

bool not_given(const TensorView& t) {
  return t.data == nullptr && t.rank == 0;
}

void check_outputs_apart(const SparseMlaPrefill& a) {
  const auto overlap = [](const TensorView& x, const TensorView& y) {
    return !not_given(x) && !not_given(y) && may_alias(x, y);
  };
  if (overlap(a.out, a.max_logits) || overlap(a.out, a.lse) || overlap(a.max_logits, a.lse)) {
    raise(Page::sparse_mla_outputs_alias, {{"argument", "out, max_logits, lse"}});
  }
}

}  // namespace

namespace sparse_mla {

Params describe(const SparseMlaPrefill& a) noexcept {
  Params p;
  p.s_q = a.q.shape[0];
  p.h_q = a.q.shape[1];
  p.d_qk = a.q.shape[2];
  p.s_kv = a.kv.shape[0];
  p.topk = a.indices.shape[2];
  p.q = a.q.as<const std::uint8_t>();
  p.stride_q_s_q = a.q.strides[0];
  p.stride_q_h_q = a.q.strides[1];
  p.kv = a.kv.as<const std::uint8_t>();
  p.stride_kv_s_kv = a.kv.strides[0];
  p.indices = a.indices.as<const std::int32_t>();
  p.stride_indices_s_q = a.indices.strides[0];
  p.sm_scale = a.sm_scale;
  p.q_scale = a.q_scale.as<const float>();
  p.kv_scale = a.kv_scale.as<const float>();
  if (a.attn_sink) p.attn_sink = a.attn_sink->as<const float>();
  if (a.topk_length) p.topk_length = a.topk_length->as<const std::int32_t>();
  p.out = a.out.as<std::uint16_t>();
  p.max_logits = a.max_logits.as<float>();
  p.lse = a.lse.as<float>();
  const float inf = std::numeric_limits<float>::infinity();
  p.empty_row_lse = a.empty_row_lse == EmptyRowLse::plus_inf ? inf : -inf;
  p.p_bf16 = a.p_dtype == DType::bf16;
  p.workspace = a.workspace.data;
  return p;
}

void check(const SparseMlaPrefill& a) {
  const Device device = a.q.device;
  Shapes shapes;
  const auto input = [&](const char* name, const TensorView& t, DType dtype) {
    check_dtype(name, t, dtype);
    check_same_device(name, t, "q", device);
    check_data(name, t);
  };

  shapes.bind("q", a.q, {"s_q", "h_q", "d_qk"});
  check_dtype("q", a.q, DType::e4m3);
  if (device.type != DeviceType::cuda) check_device("q", a.q, {DeviceType::cpu, device.index});
  check_data("q", a.q);
  require_size(shapes["h_q"] >= 1, "h_q", "at least 1", shapes["h_q"]);
  const std::int64_t d_qk = shapes["d_qk"];
  require_size(d_qk == 512 || d_qk == 576, "d_qk", "512 or 576", d_qk);
  check_last_dim_contiguous("q", a.q);

  shapes.bind("kv", a.kv, {"s_kv", 1, "d_qk"});
  input("kv", a.kv, DType::e4m3);
  check_last_dim_contiguous("kv", a.kv);
  check_stride_multiple("kv", a.kv, 0, 16);
  check_aligned("kv", a.kv, 16);

  shapes.bind("indices", a.indices, {"s_q", 1, "topk"});
  input("indices", a.indices, DType::i32);
  require_size(shapes["topk"] >= 1, "topk", "at least 1", shapes["topk"]);
  check_last_dim_contiguous("indices", a.indices);

  if (!std::isfinite(a.sm_scale)) {
    raise(Page::sparse_mla_scale_not_finite,
          {{"name", "sm_scale"}, {"got", fmt::format("{}", a.sm_scale)}});
  }
  const auto scalar = [&](const char* name, const TensorView& t) {
    check_scalar(name, t);
    input(name, t, DType::f32);
  };
  scalar("q_scale", a.q_scale);
  scalar("kv_scale", a.kv_scale);
  require_size(a.d_v == sparse_mla::kDV, "d_v", "512", a.d_v);

  if (a.attn_sink) {
    shapes.expect("attn_sink", *a.attn_sink, {"h_q"});
    input("attn_sink", *a.attn_sink, DType::f32);
    check_contiguous("attn_sink", *a.attn_sink);
  }
  if (a.topk_length) {
    shapes.expect("topk_length", *a.topk_length, {"s_q"});
    input("topk_length", *a.topk_length, DType::i32);
    check_contiguous("topk_length", *a.topk_length);
  }

  const auto output = [&](const char* name, const TensorView& t, DType dtype,
                          std::initializer_list<Dim> want) {
    shapes.expect(name, t, want);
    input(name, t, dtype);
    check_contiguous(name, t);
  };
  output("out", a.out, DType::bf16, {"s_q", "h_q", a.d_v});
  output("max_logits", a.max_logits, DType::f32, {"s_q", "h_q"});
  output("lse", a.lse, DType::f32, {"s_q", "h_q"});
  check_outputs_apart(a);
  if (a.p_dtype != DType::f32 && a.p_dtype != DType::bf16) {
    raise(Page::wrong_dtype,
          {{"name", "p_dtype"}, {"want", "float32 or bfloat16"}, {"got", dtype_string(a.p_dtype)}});
  }
}

void check_workspace(const SparseMlaPrefill& a, std::size_t bytes) {
  if (bytes == 0) return;
  const auto got = static_cast<std::size_t>(a.workspace.numel() * size_of(a.workspace.dtype));
  if (a.workspace.data == nullptr || got < bytes) {
    raise(Page::sparse_mla_workspace_too_small,
          {{"name", "workspace"},
           {"want", std::to_string(bytes)},
           {"got", std::to_string(a.workspace.data == nullptr ? 0 : got)}});
  }
  check_same_device("workspace", a.workspace, "q", a.q.device);
  check_contiguous("workspace", a.workspace);
  check_aligned("workspace", a.workspace, 16);
}

}  // namespace sparse_mla

namespace {

// The compatible function's words for a dtype: "q must be torch.float8_e4m3fn, got torch.uint8".
void check_is(const char* name, const TensorView& t, DType want, DTypeNames want_names) {
  if (t.dtype == want) return;
  raise(Page::sparse_mla_wrong_dtype, {{"name", name},
                                       {"want", dtype_string(want, want_names)},
                                       {"got", dtype_string(t.dtype, DTypeNames::torch)}});
}

// A size that the compatible function takes in one form only; the page holds the words.
void require(bool holds, Page page, const char* name, std::int64_t got) {
  if (!holds) raise(page, {{"argument", name}, {"got", text(got)}});
}

}  // namespace

void check_sglang_contract(const SparseMlaPrefill& a, bool require_cuda) {
  const Device device = a.q.device;
  const auto cuda = [&](const char* name, const TensorView& t) {
    if (require_cuda) check_cuda(name, t);
  };
  const auto placed = [&](const char* name, const TensorView& t) {
    cuda(name, t);
    check_same_device(name, t, "q", device);
  };

  check_rank("q", a.q, 3, "(s_q, h_q, d_qk)");
  check_rank("kv", a.kv, 3, "(s_kv, h_kv, d_qk)");
  check_rank("indices", a.indices, 3, "(s_q, h_kv, topk)");
  const auto [s_q, h_q, d_qk] = std::array{a.q.shape[0], a.q.shape[1], a.q.shape[2]};
  const std::int64_t h_kv = a.kv.shape[1];
  const std::int64_t topk = a.indices.shape[2];

  cuda("q", a.q);
  cuda("kv", a.kv);
  cuda("indices", a.indices);
  check_same_device("kv", a.kv, "q", device);
  check_same_device("indices", a.indices, "q", device);
  check_is("q", a.q, DType::e4m3, DTypeNames::torch);
  check_is("kv", a.kv, DType::e4m3, DTypeNames::torch);
  check_contiguous("q", a.q);
  if (!a.kv.is_contiguous()) raise(Page::kv_must_be_contiguous, {{"argument", "kv"}});
  check_contiguous("indices", a.indices);

  Shapes shapes;
  shapes.set("d_qk", d_qk, "q");
  shapes.bind("kv", a.kv, {"s_kv", "h_kv", "d_qk"});
  require(h_q > 0 && h_q % 64 == 0, Page::sparse_mla_heads_not_padded, "h_q", h_q);
  require(h_kv == 1, Page::sparse_mla_one_kv_head, "h_kv", h_kv);
  require(d_qk == 512 || d_qk == 576, Page::sparse_mla_unsupported_d_qk, "d_qk", d_qk);
  shapes.set("s_q", s_q, "q");
  shapes.expect("indices", a.indices, {"s_q", "h_kv", "topk"});
  check_is("indices", a.indices, DType::i32, DTypeNames::plain);
  require(topk > 0 && topk % 128 == 0, Page::sparse_mla_topk_not_padded, "topk", topk);

  const auto vector = [&](const char* name, const TensorView& t, DType dtype, std::int64_t size) {
    if (t.rank != 1 || t.shape[0] != size || t.dtype != dtype) {
      raise(Page::sparse_mla_wrong_vector,
            {{"name", name},
             {"dtype", dtype_string(dtype)},
             {"size", text(size)},
             {"got", shape_string(t) + "/" + dtype_string(t.dtype, DTypeNames::torch)}});
    }
    placed(name, t);
    check_contiguous(name, t);
  };
  if (a.topk_length) {
    vector("topk_length", *a.topk_length, DType::i32, s_q);
    // Values on a GPU cannot be looked at without a synchronisation: the kernel clamps them.
    if (a.topk_length->device.type == DeviceType::cpu && a.topk_length->data != nullptr) {
      for (std::int64_t i = 0; i < s_q; ++i) {
        const std::int32_t n = a.topk_length->as<const std::int32_t>()[i];
        if (n >= 0 && n <= topk) continue;
        raise(Page::sparse_mla_topk_length_out_of_range,
              {{"argument", "topk_length"}, {"topk", text(topk)}, {"got", text(n)}});
      }
    }
  }
  require(a.d_v == sparse_mla::kDV, Page::sparse_mla_unsupported_d_v, "d_v", a.d_v);
  if (a.attn_sink && !a.topk_length) {
    raise(Page::sparse_mla_sink_without_topk_length, {{"argument", "attn_sink"}});
  }
  if (a.attn_sink) vector("attn_sink", *a.attn_sink, DType::f32, h_q);

  const auto scalar = [&](const char* name, const TensorView& t) {
    if (not_given(t)) raise(Page::sparse_mla_scale_not_a_tensor, {{"name", name}});
    placed(name, t);
    check_is(name, t, DType::f32, DTypeNames::plain);
    check_scalar(name, t);
    check_contiguous(name, t);
  };
  scalar("q_scale", a.q_scale);
  scalar("kv_scale", a.kv_scale);

  const auto output = [&](const char* name, const TensorView& t, DType dtype,
                          std::initializer_list<Dim> want) {
    if (not_given(t)) return;
    shapes.expect(name, t, want);
    check_dtype(name, t, dtype, DTypeNames::torch);
    check_device(name, t, device);
    check_contiguous(name, t);
  };
  shapes.set("h_q", h_q, "q");
  output("out", a.out, DType::bf16, {"s_q", "h_q", a.d_v});
  output("max_logits", a.max_logits, DType::f32, {"s_q", "h_q"});
  output("lse", a.lse, DType::f32, {"s_q", "h_q"});
  check_outputs_apart(a);
}

}  // namespace serinus
