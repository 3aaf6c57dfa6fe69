// The Monitor. serinus/monitor.py is the class that people use; it keeps alive what the monitor
// looks at.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <serinus/canary.h>
#include <serinus/metrics.h>

#include "bind.h"
#include "named.h"
#include "numbers.h"
#include "tensor.h"

namespace serinus::python {

namespace {

using namespace nb::literals;
using canary::Monitor;

canary::Options options_of(const nb::dict& given) {
  const auto word = [&](const char* name) { return nb::cast<std::string>(given[name]); };
  const auto number = [&](const char* name) { return nb::cast<std::int64_t>(given[name]); };
  canary::Options o;
  o.format = named<canary::Format>(
      "format", word("format"),
      {{"serinus", canary::Format::serinus}, {"sglang", canary::Format::sglang}});
  o.depth = named<canary::Depth>("depth", word("depth"),
                                 {{"none", canary::Depth::none},
                                  {"partial", canary::Depth::partial},
                                  {"all", canary::Depth::all}});
  o.mode = named<canary::Mode>("mode", word("mode"),
                               {{"none", canary::Mode::none},
                                {"log", canary::Mode::log},
                                {"raise", canary::Mode::raise},
                                {"quarantine", canary::Mode::quarantine}});
  o.verify = named<canary::VerifyPolicy>(
      "verify", word("verify"),
      {{"rolling", canary::VerifyPolicy::rolling}, {"all", canary::VerifyPolicy::all}});
  o.records_per_step = number("records_per_step");
  o.bytes_per_step = number("bytes_per_step");
  o.source_digests = nb::cast<bool>(given["source_digests"]);
  o.sweep_interval = number("sweep_interval");
  o.ring_capacity = number("ring_capacity");
  o.event_capacity = number("event_capacity");
  o.threads = static_cast<int>(number("threads"));
  return o;
}

// A buffer of pages: the first dimension counts them where the tensor is strided, the rest of a
// page is dense. A dense tensor may have any shape.
KvBuffer buffer_of(const std::string& name, Tensors& tensors, nb::handle object) {
  const TensorView view = tensors.take(name, object);
  check_device(name, view, {});
  const std::int64_t size = size_of(view.dtype);
  KvBuffer b;
  b.data = view.as<std::uint8_t>();
  if (view.is_contiguous()) {
    b.bytes = view.numel() * size;
    return b;
  }
  TensorView page = view;
  page.shape[0] = 1;
  check_contiguous(name, page);
  check_stride_multiple(name, view, 0, 1);
  b.page_stride = view.strides[0] * size;
  b.bytes = (view.shape[0] - 1) * b.page_stride + page.numel() * size;
  return b;
}

int add_pool(Monitor& monitor, const KvLayout& layout, const nb::list& buffers,
             const nb::dict& given) {
  const auto word = [&](const char* name) { return nb::cast<std::string>(given[name]); };
  const auto number = [&](const char* name) { return nb::cast<std::int64_t>(given[name]); };
  Tensors tensors;
  canary::PoolSpec p;
  p.name = word("name");
  p.kind = named<canary::PoolKind>("kind", word("kind"),
                                   {{"full", canary::PoolKind::full},
                                    {"swa", canary::PoolKind::swa},
                                    {"draft", canary::PoolKind::draft}});
  p.layout = layout;
  p.num_layers = static_cast<int>(number("num_layers"));
  for (std::size_t i = 0; i < nb::len(buffers); ++i) {
    p.buffers.push_back(buffer_of("buffers[" + std::to_string(i) + "]", tensors, buffers[i]));
  }
  p.num_slots = given["num_slots"].is_none() ? slots_in(layout, p.buffers) : number("num_slots");
  p.null_slot = named<canary::NullSlot>(
      "null_slot", word("null_slot"),
      {{"clean", canary::NullSlot::clean}, {"scratch", canary::NullSlot::scratch}});
  p.window = number("window");
  const Numbers full_to_swa("full_to_swa", nb::object(given["full_to_swa"]));
  p.full_to_swa = full_to_swa.span();
  p.token_offset = static_cast<int>(number("token_offset"));
  return monitor.add_pool(std::move(p));
}

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
        valid_lens_("valid_lens", attribute(batch, "valid_lens")) {
    const Numbers pools("pools", attribute(batch, "pools"));
    for (const std::int64_t p : pools.span()) pools_.push_back(static_cast<int>(p));
    const Numbers owners("owners", attribute(batch, "owners"));
    for (const std::int64_t o : owners.span()) owners_.push_back(static_cast<canary::Owner>(o));
    view.pools = pools_;
    view.rows = rows_.span();
    view.prefix_lens = prefix_lens_.span();
    view.extend_lens = extend_lens_.span();
    view.owners = owners_;
    view.req_to_token = tensors_.take("req_to_token", attribute(batch, "req_to_token"));
    view.input_ids = input_ids_.span();
    view.positions = positions_.span();
    view.out_cache_loc = out_cache_loc_.span();
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
  Numbers rows_, prefix_lens_, extend_lens_, input_ids_, positions_, out_cache_loc_, valid_lens_;
};

canary::Moment moment_named(const std::string& word) {
  return named<canary::Moment>("moment", word,
                               {{"head", canary::Moment::head},
                                {"tail", canary::Moment::tail},
                                {"sweep", canary::Moment::sweep}});
}

// Each as its pool's number, its line and its JSON: the frozen formats carry every field.
nb::list poll(Monitor& monitor) {
  std::vector<canary::Violation> found;
  {
    const nb::gil_scoped_release release;
    found = monitor.poll();
  }
  nb::list out;
  for (const canary::Violation& v : found) {
    const std::string& pool = monitor.pool(v.pool).name;
    out.append(nb::make_tuple(v.pool, canary::to_text(v, pool), canary::to_json(v, pool)));
  }
  return out;
}

nb::dict stats(const Monitor& monitor) {
  const canary::Stats s = monitor.stats();
  nb::dict d;
  d["steps"] = s.steps;
  d["records_written"] = s.records_written;
  d["records_verified"] = s.records_verified;
  d["bytes_digested"] = s.bytes_digested;
  d["sweeps"] = s.sweeps;
  d["violations"] = s.violations;
  d["sightings"] = s.sightings;
  d["dropped"] = s.dropped;
  d["out_of_range"] = s.out_of_range;
  d["skipped_empty"] = s.skipped_empty;
  d["live_slots"] = s.live_slots;
  d["sweep_bound_steps"] = s.sweep_bound_steps;
  d["seconds_head"] = s.seconds_head;
  d["seconds_tail"] = s.seconds_tail;
  d["seconds_sweep"] = s.seconds_sweep;
  return d;
}

nb::tuple tainted(Monitor& monitor) {
  const Monitor::Tainted t = monitor.tainted();
  nb::list slots;
  nb::list requests;
  for (const auto& [pool, slot] : t.slots) slots.append(nb::make_tuple(pool, slot));
  for (const canary::Owner owner : t.requests) requests.append(owner);
  return nb::make_tuple(slots, requests, t.complete);
}

// The monitor's own memory as bytes [slots, bytes of one], alive as long as the array.
template <class T>
nb::ndarray<nb::numpy, std::uint8_t> bytes_of(nb::handle monitor, std::span<T> items) {
  return nb::ndarray<nb::numpy, std::uint8_t>(items.data(), {items.size(), sizeof(T)}, monitor);
}

void on_store(Monitor& monitor, int pool, nb::handle slots, nb::handle records) {
  Tensors tensors;
  const Numbers from("slots", slots);
  const TensorView to = tensors.take("records", records, Access::write);
  check_device("records", to, {});
  check_contiguous("records", to);
  const auto bytes = static_cast<std::size_t>(to.numel() * size_of(to.dtype));
  check_aligned("records", to, alignof(canary::Record));
  monitor.on_store(pool, from.span(), {to.as<canary::Record>(), bytes / sizeof(canary::Record)});
}

void on_load(Monitor& monitor, int pool, nb::handle records, nb::handle slots,
             canary::Owner owner) {
  Tensors tensors;
  const Numbers to("slots", slots);
  const TensorView from = tensors.take("records", records);
  check_device("records", from, {});
  check_contiguous("records", from);
  check_aligned("records", from, alignof(canary::Record));
  const auto bytes = static_cast<std::size_t>(from.numel() * size_of(from.dtype));
  monitor.on_load(pool, {from.as<const canary::Record>(), bytes / sizeof(canary::Record)},
                  to.span(), owner);
}

}  // namespace

void bind_monitor(nb::module_& m) {
  nb::class_<Monitor>(m, "Monitor")
      .def("__init__",
           [](Monitor* self, const nb::dict& options) { new (self) Monitor(options_of(options)); })
      .def("add_pool", &add_pool)
      .def("on_alloc",
           [](Monitor& self, int pool, nb::handle slots, canary::Owner owner) {
             self.on_alloc(pool, Numbers("slots", slots).span(), owner);
           })
      .def("on_free",
           [](Monitor& self, int pool, nb::handle slots, canary::Owner owner) {
             self.on_free(pool, Numbers("slots", slots).span(), owner);
           })
      .def("on_transfer",
           [](Monitor& self, int pool, nb::handle slots, canary::Owner from, canary::Owner to) {
             self.on_transfer(pool, Numbers("slots", slots).span(), from, to);
           })
      .def("on_attach", &Monitor::on_attach)
      .def("on_release", &Monitor::on_release)
      .def("on_move",
           [](Monitor& self, int pool, nb::handle from, nb::handle to) {
             self.on_move(pool, Numbers("from", from).span(), Numbers("to", to).span());
           })
      .def("on_store", &on_store)
      .def("on_load", &on_load)
      .def("begin_step",
           [](Monitor& self, nb::handle batch) {
             const BatchView b(batch);
             const nb::gil_scoped_release release;
             self.begin_step(b.view);
           })
      .def("end_step",
           [](Monitor& self, nb::handle batch) {
             const BatchView b(batch);
             const nb::gil_scoped_release release;
             self.end_step(b.view);
           })
      .def("verify_now",
           [](Monitor& self, const std::string& moment, canary::Owner owner, std::int64_t row,
              std::int64_t begin, std::int64_t end, nb::handle tables) {
             const BatchView b(tables);
             self.verify_now(moment_named(moment), owner, row, begin, end, b.view);
           })
      .def("request_digest",
           [](const Monitor& self, std::int64_t row, std::int64_t length, nb::handle tables) {
             const BatchView b(tables);
             return self.request_digest(row, length, b.view);
           })
      .def("poll", &poll)
      .def("flush",
           [](Monitor& self) {
             const nb::gil_scoped_release release;
             self.flush();
           })
      .def("tainted", &tainted)
      .def("stats", &stats)
      .def("metrics_text",
           [](const Monitor& self, const std::string& name) {
             const canary::MetricsSample sample = canary::metrics_sample(self, name);
             return canary::metrics_text({&sample, 1});
           })
      .def("state",
           [](const Monitor& self, int pool, std::int64_t slot) {
             switch (self.state(pool, slot)) {
               case canary::SlotState::free:
                 return "free";
               case canary::SlotState::empty:
                 return "empty";
               case canary::SlotState::written:
                 return "written";
             }
             return "unknown";
           })
      .def("records",
           [](nb::handle self, int pool) {
             return bytes_of(self, nb::cast<Monitor&>(self).records(pool));
           })
      .def("ledger", [](nb::handle self, int pool) {
        return bytes_of(self, nb::cast<Monitor&>(self).ledger(pool));
      });
  m.attr("metrics_type") = canary::kMetricsType;
}

}  // namespace serinus::python
