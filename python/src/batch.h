// One forward as Python describes it (serinus.Batch), seen by the library.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <vector>

#include <serinus/canary.h>

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

 private:
  static nb::object attribute(nb::handle batch, const char* name) { return batch.attr(name); }

  Tensors tensors_;
  std::vector<int> pools_;
  std::vector<canary::Owner> owners_;
  Numbers rows_, prefix_lens_, extend_lens_, input_ids_, positions_, out_cache_loc_, parents_,
      valid_lens_;
};

}  // namespace serinus::python
