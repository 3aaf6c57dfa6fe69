// One forward as Python describes it (serinus.Batch), seen by the library.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <vector>

#include <serinus/canary.h>
#include <serinus/canary_cuda.h>

#include "numbers.h"
#include "tensor.h"

namespace serinus::python {

/// A batch and what its spans look at.
class BatchView {
 public:
  explicit BatchView(nb::handle batch)
      : rows_("rows", attribute(batch, "rows")),
        prefix_lens_("prefix_lens", attribute(batch, "prefix_lens")),
        extend_lens_("extend_lens", attribute(batch, "extend_lens")),
        input_ids_("input_ids", attribute(batch, "input_ids")),
        positions_("positions", attribute(batch, "positions")),
        out_cache_loc_("out_cache_loc", attribute(batch, "out_cache_loc")),
        parents_("parents", attribute(batch, "parents")),
        valid_lens_("valid_lens", attribute(batch, "valid_lens")) {
    narrow("pools", attribute(batch, "pools"), pools_);
    narrow("owners", attribute(batch, "owners"), owners_);
    view.pools = pools_;
    view.rows = rows_.span();
    view.prefix_lens = prefix_lens_.span();
    view.extend_lens = extend_lens_.span();
    view.owners = owners_;
    view.req_to_token = tensors_.take("req_to_token", attribute(batch, "req_to_token"));
    view.input_ids = input_ids_.span();
    view.positions = positions_.span();
    view.out_cache_loc = out_cache_loc_.span();
    view.parents = parents_.span();
    const auto expected =
        tensors_.take_optional("expected_tokens", attribute(batch, "expected_tokens"));
    if (expected) view.expected_tokens = *expected;
    view.valid_lens = valid_lens_.span();
  }

  canary::Batch view;
  Device device() const noexcept { return view.req_to_token.device; }

 private:
  static nb::object attribute(nb::handle batch, const char* name) { return batch.attr(name); }

  Tensors tensors_;
  std::vector<int> pools_;
  std::vector<canary::Owner> owners_;
  Numbers rows_, prefix_lens_, extend_lens_, input_ids_, positions_, out_cache_loc_, parents_,
      valid_lens_;
};

/// The same where all of its arrays lie on a GPU.
class DeviceBatchView {
 public:
  explicit DeviceBatchView(nb::handle batch) {
    const auto take = [&](const char* name) {
      return tensors_.take(name, nb::object(batch.attr(name)));
    };
    const auto take_optional = [&](const char* name) {
      return tensors_.take_optional(name, nb::object(batch.attr(name)));
    };
    narrow("pools", nb::object(batch.attr("pools")), pools);
    view.rows = take("rows");
    view.prefix_lens = take("prefix_lens");
    view.extend_lens = take("extend_lens");
    view.owners = take("owners");
    view.req_to_token = take("req_to_token");
    if (const auto t = take_optional("input_ids")) view.input_ids = *t;
    if (const auto t = take_optional("positions")) view.positions = *t;
    if (const auto t = take_optional("out_cache_loc")) view.out_cache_loc = *t;
    view.expected_tokens = take_optional("expected_tokens");
    view.valid_lens = take_optional("valid_lens");
    view.parents = take_optional("parents");
  }

  /// Whether `batch` is one of these: its rows say it.
  static bool is(nb::handle batch) {
    Tensors tensors;
    const nb::object rows = batch.attr("rows");
    return tensors.take_or_absent("rows", rows).device.type == DeviceType::cuda;
  }

  canary::cuda::DeviceBatch view;
  std::vector<int> pools;
  Device device() const noexcept { return view.req_to_token.device; }

 private:
  Tensors tensors_;
};

}  // namespace serinus::python
