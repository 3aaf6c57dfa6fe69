// Faults on purpose, in builds that have them.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <serinus/canary_inject.h>

#include "base/checks.h"
#include "batch.h"
#include "bind.h"
#include "named.h"

namespace serinus::python {

namespace {

canary::Perturbation perturbation_named(const std::string& word) {
  using canary::Perturbation;
  return named<Perturbation>("probability", word,
                             {{"req_to_token", Perturbation::req_to_token},
                              {"kv_used", Perturbation::kv_used},
                              {"kv_unused_cache", Perturbation::kv_unused_cache},
                              {"kv_post_forward", Perturbation::kv_post_forward},
                              {"token_swap", Perturbation::token_swap},
                              {"v_byte", Perturbation::v_byte},
                              {"position", Perturbation::position},
                              {"record", Perturbation::record}});
}

nb::list described_all(const std::vector<canary::Injected>& done) {
  nb::list out;
  for (const canary::Injected& i : done) {
    nb::dict d;
    d["what"] = canary::name_of(i.what);
    d["step"] = i.step;
    d["pool"] = i.pool;
    d["slot"] = i.slot;
    d["row"] = i.row;
    d["cell"] = i.cell;
    d["before"] = i.before;
    d["after"] = i.after;
    d["text"] = canary::to_text(i);
    out.append(d);
  }
  return out;
}

// Input of the forward that is written to: a list could not be.
std::span<std::int64_t> writable(Tensors& tensors, nb::handle batch, const char* name) {
  const nb::object object = batch.attr(name);
  if (object.is_none()) return {};
  const TensorView view = tensors.take(name, object, Access::write);
  check_device(name, view, {});
  check_rank(name, view, 1, "(n,)");
  check_dtype(name, view, DType::i64);
  check_contiguous(name, view);
  return {view.as<std::int64_t>(), static_cast<std::size_t>(view.shape[0])};
}

}  // namespace

void bind_inject(nb::module_& m) {
  nb::class_<canary::Injector>(m, "Injector")
      .def(
          "__init__",
          [](canary::Injector* self, canary::Monitor& monitor, const nb::dict& probability,
             std::uint64_t seed, std::int64_t warmup_steps, int pool) {
            canary::InjectOptions options{.enabled = true, .seed = seed};
            options.warmup_steps = warmup_steps;
            options.pool = pool;
            for (const auto& [word, chance] : probability) {
              const auto p = perturbation_named(text_in(word));
              options.probability[static_cast<std::size_t>(p)] =
                  nb::cast<double>(nb::float_(chance));
            }
            new (self) canary::Injector(monitor, options);
          },
          nb::keep_alive<1, 2>())
      .def("before_step",
           [](canary::Injector& self, nb::handle batch) {
             Tensors tensors;
             const auto input_ids = writable(tensors, batch, "input_ids");
             const auto positions = writable(tensors, batch, "positions");
             return described_all(self.before_step(BatchView(batch).view, input_ids, positions));
           })
      .def("after_step", [](canary::Injector& self, nb::handle batch) {
        return described_all(self.after_step(BatchView(batch).view));
      });
}

}  // namespace serinus::python
