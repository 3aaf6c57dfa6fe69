// The canary in SGLang's format. Contexts and plans are the dataclasses of
// serinus.sglang.kv_canary, read by their attributes.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <string>

#include <serinus/canary_sglang.h>

#include "bind.h"
#include "canary/sglang/params.h"
#include "numbers.h"
#include "tensor.h"

namespace serinus::python {

namespace {

namespace sg = canary::sglang;
using namespace nb::literals;

/// Takes tensors by their attribute names.
struct Reader {
  Tensors& tensors;
  nb::handle object;

  TensorView operator()(const char* attribute, Access access) const {
    return tensors.take(attribute, nb::object(object.attr(attribute)), access);
  }
  std::int64_t number(const char* attribute) const {
    return number_in(attribute, nb::object(object.attr(attribute)));
  }
};

sg::RealKvSource source_of(Tensors& tensors, nb::handle source) {
  const Reader read{tensors, source};
  return {read("tensor", Access::read), read.number("page_size"),
          read.number("num_bytes_per_token"), read.number("read_bytes")};
}

sg::VerifyOrWriteContext context_of(Tensors& tensors, nb::handle context, Access records) {
  const Reader read{tensors, context};
  sg::VerifyOrWriteContext c;
  c.canary_buf = read("canary_buf", records);
  c.kernel_kind = static_cast<sg::LaunchTag>(read.number("kernel_kind"));
  c.violation_ring = read("violation_ring", Access::write);
  c.violation_write_index = read("violation_write_index", Access::write);
  c.slot_run_counter = read("slot_run_counter", Access::write);
  c.kernel_run_counter = read("kernel_run_counter", Access::write);
  for (const nb::handle source : nb::object(context.attr("real_kv_sources"))) {
    c.real_kv_sources.push_back(source_of(tensors, source));
  }
  c.real_kv_hash_mode = static_cast<sg::RealKvHashMode>(read.number("real_kv_hash_mode"));
  c.enable_chain_position_assert = read("enable_chain_position_assert", Access::read);
  return c;
}

sg::VerifyPlan verify_plan_of(Tensors& tensors, nb::handle plan, Access access) {
  const Reader read{tensors, plan};
  return {read("verify_slot_indices", access),       read("verify_expected_tokens", access),
          read("verify_expected_positions", access), read("verify_prev_slot_indices", access),
          read("verify_num_valid", access),          read("enable", access)};
}

sg::WritePlan write_plan_of(Tensors& tensors, nb::handle plan, Access access) {
  const Reader read{tensors, plan};
  return {read("write_offsets", access), read("write_seed_slot_indices", access),
          read("write_num_valid_reqs", access)};
}

// All tensors of a call lie on one device, or the door says which does not.
Stream current_stream(nb::handle object, const char* attribute, const TensorView& view) {
  return stream_for(nb::none(), nb::object(object.attr(attribute)), view.device);
}

void verify(nb::handle context, nb::handle plan, bool check_verify_expected_token, int threads) {
  Tensors tensors;
  const sg::VerifyOrWriteContext c = context_of(tensors, context, Access::read);
  const sg::VerifyPlan p = verify_plan_of(tensors, plan, Access::read);
  const Stream stream = current_stream(context, "canary_buf", c.canary_buf);
  const nb::gil_scoped_release release;
  sg::verify(c, p, check_verify_expected_token, stream, threads);
}

void write(nb::handle context, nb::handle plan, nb::handle input_ids, nb::handle positions,
           nb::handle out_cache_loc, bool enable_write_input_assert,
           nb::handle expected_input_tokens, nb::handle expected_input_positions, int threads) {
  Tensors tensors;
  const sg::VerifyOrWriteContext c = context_of(tensors, context, Access::write);
  const sg::WritePlan p = write_plan_of(tensors, plan, Access::read);
  const sg::WriteInput input{
      tensors.take("input_ids", input_ids),
      tensors.take("positions", positions),
      tensors.take("out_cache_loc", out_cache_loc),
      enable_write_input_assert,
      tensors.take_optional("expected_input_tokens", expected_input_tokens),
      tensors.take_optional("expected_input_positions", expected_input_positions)};
  const Stream stream = current_stream(context, "canary_buf", c.canary_buf);
  const nb::gil_scoped_release release;
  sg::write(c, p, input, stream, threads);
}

void plan(nb::handle verify_plan_out, nb::handle write_plan_out, nb::handle req_pool_indices,
          nb::handle prefix_lens, nb::handle extend_seq_lens, nb::handle req_to_token,
          std::int64_t swa_window_size, nb::handle full_to_swa_index_mapping,
          std::int64_t verify_capacity, nb::handle req_to_verify_expected_tokens,
          nb::handle req_to_verify_expected_tokens_valid_lens,
          std::int64_t kv_token_id_vs_position_offset, int threads) {
  Tensors tensors;
  const sg::VerifyPlan v = verify_plan_of(tensors, verify_plan_out, Access::write);
  const sg::WritePlan w = write_plan_of(tensors, write_plan_out, Access::write);
  const sg::PlanInput input{
      tensors.take("req_pool_indices", req_pool_indices),
      tensors.take("prefix_lens", prefix_lens),
      tensors.take("extend_seq_lens", extend_seq_lens),
      tensors.take("req_to_token", req_to_token),
      swa_window_size,
      tensors.take_optional("full_to_swa_index_mapping", full_to_swa_index_mapping),
      verify_capacity,
      tensors.take_optional("req_to_verify_expected_tokens", req_to_verify_expected_tokens),
      tensors.take_optional("req_to_verify_expected_tokens_valid_lens",
                            req_to_verify_expected_tokens_valid_lens),
      kv_token_id_vs_position_offset};
  const Stream stream = stream_for(nb::none(), req_pool_indices, input.req_pool_indices.device);
  const nb::gil_scoped_release release;
  sg::plan(v, w, input, stream, threads);
}

void scatter(nb::handle flat_in, nb::handle offsets, nb::handle req_pool_indices,
             nb::handle pool_out) {
  Tensors tensors;
  const TensorView flat = tensors.take("flat_in", flat_in);
  const TensorView begins = tensors.take("offsets", offsets);
  const TensorView rows = tensors.take("req_pool_indices", req_pool_indices);
  const TensorView pool = tensors.take("pool_out", pool_out, Access::write);
  const Stream stream = stream_for(nb::none(), flat_in, flat.device);
  const nb::gil_scoped_release release;
  sg::scatter_req_token_ids(flat, begins, rows, pool, stream);
}

void translate(nb::handle slots, nb::handle full_to_swa_index_mapping, nb::handle out) {
  Tensors tensors;
  const TensorView from = tensors.take("slots", slots);
  const TensorView mapping = tensors.take("full_to_swa_index_mapping", full_to_swa_index_mapping);
  const TensorView to = tensors.take("out", out, Access::write);
  const Stream stream = stream_for(nb::none(), slots, from.device);
  const nb::gil_scoped_release release;
  sg::translate_slots(from, mapping, to, stream);
}

sg::ViolationRow row_of(nb::handle fields) {
  std::int64_t f[sg::kViolationFields];
  for (std::size_t i = 0; i < std::size(f); ++i) f[i] = number_in("row", nb::object(fields[i]));
  return {f[0], f[1], f[2], f[3], f[4], f[5], f[6], f[7]};
}

}  // namespace

void bind_canary_sglang(nb::module_& parent) {
  nb::module_ m = parent.def_submodule("sglang");
  m.def("check_source", [](nb::handle source) {
    Tensors tensors;
    sg::check(source_of(tensors, source));
  });
  m.def("check_verify_capacity", &sg::check_verify_capacity);
  m.def("check_write_req_capacity", &sg::check_write_req_capacity);
  m.def("verify", &verify, "context"_a, "plan"_a, "check_verify_expected_token"_a, "threads"_a);
  m.def("write", &write, "context"_a, "plan"_a, "input_ids"_a.none(), "positions"_a.none(),
        "out_cache_loc"_a.none(), "enable_write_input_assert"_a, "expected_input_tokens"_a.none(),
        "expected_input_positions"_a.none(), "threads"_a);
  m.def("plan", &plan, "verify_plan_out"_a, "write_plan_out"_a, "req_pool_indices"_a.none(),
        "prefix_lens"_a.none(), "extend_seq_lens"_a.none(), "req_to_token"_a.none(),
        "swa_window_size"_a, "full_to_swa_index_mapping"_a.none(), "verify_capacity"_a,
        "req_to_verify_expected_tokens"_a.none(),
        "req_to_verify_expected_tokens_valid_lens"_a.none(), "kv_token_id_vs_position_offset"_a,
        "threads"_a);
  m.def("scatter_req_token_ids", &scatter, "flat_in"_a.none(), "offsets"_a.none(),
        "req_pool_indices"_a.none(), "pool_out"_a.none());
  m.def("translate_slots", &translate, "slots"_a.none(), "full_to_swa_index_mapping"_a.none(),
        "out"_a.none());
  // Eight numbers of a ring row: SGLang's text of it.
  m.def("report_text", [](nb::handle row, std::int64_t total_violations, bool ring_overflow,
                          std::int64_t step_when_pumped) {
    return sg::report_text(row_of(row), total_violations, ring_overflow, step_when_pumped);
  });
  m.def("request_id_hash", [](const std::string& id) { return sg::request_id_hash(id); });
  m.def("oracle_token", &sg::oracle_token);
}

}  // namespace serinus::python
