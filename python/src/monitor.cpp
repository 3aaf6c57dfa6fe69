// The Monitor. serinus/monitor.py is the class that people use; it keeps alive what the monitor
// looks at.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <serinus/canary.h>
#include <serinus/canary_config.h>
#include <serinus/canary_sink.h>
#include <serinus/metrics.h>

#include "batch.h"
#include "bind.h"
#include "named.h"
#include "numbers.h"
#include "tensor.h"
#include "violations.h"

namespace serinus::python {

namespace {

using namespace nb::literals;
using canary::Monitor;

canary::Options options_of(const nb::dict& given) {
  const auto word = [&](const char* name) { return text_in(given[name]); };
  const auto number = [&](const char* name) { return number_in(name, given[name]); };
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
  o.source_digests = static_cast<bool>(nb::bool_(given["source_digests"]));
  o.sweep_interval = number("sweep_interval");
  o.ring_capacity = number("ring_capacity");
  o.event_capacity = number("event_capacity");
  o.health_steps = number("health_steps");
  o.threads = number_in<int>("threads", given["threads"]);
  return o;
}

// A buffer of pages: the first dimension counts them where the tensor is strided, the rest of a
// page is dense. A dense tensor may have any shape.
KvBuffer buffer_of(const std::string& name, const TensorView& view, Device device) {
  check_device(name, view, device);
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
  const auto word = [&](const char* name) { return text_in(given[name]); };
  const auto number = [&](const char* name) { return number_in(name, given[name]); };
  Tensors tensors;
  canary::PoolSpec p;
  p.name = word("name");
  p.kind = named<canary::PoolKind>("kind", word("kind"),
                                   {{"full", canary::PoolKind::full},
                                    {"swa", canary::PoolKind::swa},
                                    {"draft", canary::PoolKind::draft}});
  p.layout = layout;
  p.num_layers = number_in<int>("num_layers", given["num_layers"]);
  // Read as long as the pool is attached: no list, of which only this call's copy would be seen.
  const nb::object mapping(given["full_to_swa"]);
  if (!mapping.is_none()) tensors.take("full_to_swa", mapping);
  const Numbers full_to_swa("full_to_swa", mapping, Numbers::anywhere);
  for (std::size_t i = 0; i < nb::len(buffers); ++i) {
    const std::string name = "buffers[" + std::to_string(i) + "]";
    const TensorView view = tensors.take(name, buffers[i]);
    if (i == 0) p.device = view.device;  // and the others with it
    p.buffers.push_back(buffer_of(name, view, p.device));
  }
  if (p.buffers.empty()) p.device = full_to_swa.device();
  p.num_slots = given["num_slots"].is_none() ? slots_in(layout, p.buffers) : number("num_slots");
  p.null_slot = named<canary::NullSlot>(
      "null_slot", word("null_slot"),
      {{"clean", canary::NullSlot::clean}, {"scratch", canary::NullSlot::scratch}});
  p.window = number("window");
  p.full_to_swa = full_to_swa.span();
  p.token_offset = number_in<int>("token_offset", given["token_offset"]);
  p.table_rows = number("table_rows");
  return monitor.add_pool(std::move(p));
}

// Where the table is, whose framework knows the current stream.
template <class View>
Stream stream_of(nb::handle stream, nb::handle batch, const View& view) {
  return stream_for(stream, nb::object(batch.attr("req_to_token")), view.device());
}

// Calls `on_device` or `on_host`, with the batch as it lies and the stream.
template <class OnDevice, class OnHost>
void with_batch(nb::handle batch, nb::handle stream, const OnDevice& on_device,
                const OnHost& on_host) {
  if (DeviceBatchView::is(batch)) {
    const DeviceBatchView b(batch);
    const Stream s = stream_of(stream, batch, b);
    const nb::gil_scoped_release release;
    on_device(b, s);
  } else {
    const BatchView b(batch);
    const Stream s = stream_of(stream, batch, b);
    const nb::gil_scoped_release release;
    on_host(b, s);
  }
}

void begin_step(Monitor& monitor, nb::handle batch, nb::handle stream) {
  with_batch(
      batch, stream,
      [&](const DeviceBatchView& b, Stream s) { monitor.begin_step(b.view, s, b.pools); },
      [&](const BatchView& b, Stream s) { monitor.begin_step(b.view, s); });
}

void end_step(Monitor& monitor, nb::handle batch, nb::handle stream) {
  with_batch(
      batch, stream,
      [&](const DeviceBatchView& b, Stream s) { monitor.end_step(b.view, s, b.pools); },
      [&](const BatchView& b, Stream s) { monitor.end_step(b.view, s); });
}

void begin_replay(Monitor& monitor, nb::handle batch, nb::handle stream) {
  const DeviceBatchView b(batch);
  const Stream s = stream_of(stream, batch, b);
  const nb::gil_scoped_release release;
  monitor.begin_replay(b.view, s, b.pools);
}

void request_digests(const Monitor& monitor, int pool, nb::handle batch, nb::handle digests,
                     nb::handle stream) {
  const DeviceBatchView b(batch);
  Tensors tensors;
  const TensorView out = tensors.take("digests", digests, Access::write);
  const Stream s = stream_of(stream, batch, b);
  const nb::gil_scoped_release release;
  monitor.request_digests(pool, b.view, out, s);
}

canary::Moment moment_named(const std::string& word) {
  return named<canary::Moment>("moment", word,
                               {{"head", canary::Moment::head},
                                {"tail", canary::Moment::tail},
                                {"sweep", canary::Moment::sweep}});
}

void verify_now(Monitor& monitor, const std::string& moment, canary::Owner owner, std::int64_t row,
                std::int64_t begin, std::int64_t end, nb::handle tables, nb::handle stream) {
  const BatchView b(tables);
  const Stream s = stream_of(stream, tables, b);
  const canary::Moment m = moment_named(moment);
  const nb::gil_scoped_release release;
  monitor.verify_now(m, owner, row, begin, end, b.view, s);
}

nb::list poll(Monitor& monitor) {
  std::vector<canary::Violation> found;
  {
    const nb::gil_scoped_release release;
    found = monitor.poll();
  }
  nb::list out;
  const std::vector<canary::PoolStats> pools = monitor.pool_stats();  // those that are gone, too
  for (const canary::Violation& v : found) {
    out.append(described(v, pools[static_cast<std::size_t>(v.pool)].name));
  }
  return out;
}

// As in a violation's JSON.
nb::dict event_of(const canary::LedgerEvent& e) {
  nb::dict d;
  d["event"] = canary::name_of(e.kind);
  d["owner"] = e.owner;
  d["peer"] = e.peer;
  d["step"] = e.step;
  return d;
}

nb::list events(const Monitor& monitor, int pool, std::int64_t slot, std::size_t n) {
  nb::list out;
  for (const canary::LedgerEvent& e : monitor.events(pool, slot, n)) out.append(event_of(e));
  return out;
}

nb::list pool_events(const Monitor& monitor, int pool) {
  nb::list out;
  for (const auto& [slot, event] : monitor.pool_events(pool)) {
    out.append(nb::make_tuple(slot, event_of(event)));
  }
  return out;
}

nb::list pool_stats(const Monitor& monitor) {
  nb::list out;
  for (const canary::PoolStats& p : monitor.pool_stats()) {
    nb::dict d;
    d["name"] = p.name;
    d["kind"] = canary::name_of(p.kind);
    d["num_slots"] = p.num_slots;
    d["live_slots"] = p.live_slots;
    nb::dict violations;
    for (std::size_t i = 0; i < p.violations.size(); ++i) {
      const auto reason = static_cast<canary::Reason>(1u << i);
      violations[canary::names_of(reason).c_str()] = p.violations[i];
    }
    d["violations"] = violations;
    out.append(d);
  }
  return out;
}

nb::list health(const Monitor& monitor) {
  nb::list out;
  for (const canary::Stall& stall : monitor.health()) {
    nb::dict d;
    d["moment"] = canary::name_of(stall.moment);
    d["pool"] = stall.pool;
    d["since_step"] = stall.since_step;
    d["text"] = canary::to_text(stall, monitor.pool(stall.pool).name);
    out.append(d);
  }
  return out;
}

// `entries()` gives [(slot, position, slot before it)]; it is called during a step, from its
// thread.
void set_sweep_source(Monitor& monitor, int pool, nb::callable entries) {
  // The last reference may go where the lock of the interpreter is not held.
  const std::shared_ptr<nb::callable> held(new nb::callable(std::move(entries)),
                                           [](nb::callable* f) {
                                             const nb::gil_scoped_acquire acquire;
                                             delete f;
                                           });
  monitor.set_sweep_source(pool, [held](std::vector<canary::SweepEntry>& out) {
    const nb::gil_scoped_acquire acquire;
    for (const nb::handle entry : (*held)()) {
      out.push_back({number_in("slot", nb::object(entry[0])),
                     number_in("position", nb::object(entry[1])),
                     number_in("prev_slot", nb::object(entry[2]))});
    }
  });
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

// Memory of the caller's as items of the library's: whole ones, where they may lie.
template <class T>
std::span<T> items_in(const char* name, Tensors& tensors, nb::handle object, Access access) {
  if (object.is_none()) return {};
  const TensorView view = tensors.take(name, object, access);
  check_device(name, view, {});
  check_contiguous(name, view);
  check_aligned(name, view, alignof(T));
  return {view.as<T>(), static_cast<std::size_t>(view.numel() * size_of(view.dtype)) / sizeof(T)};
}

void on_store(Monitor& monitor, int pool, nb::handle slots, nb::handle records,
              nb::handle source_digests) {
  Tensors tensors;
  const Numbers from("slots", slots);
  monitor.on_store(
      pool, from.span(), items_in<canary::Record>("records", tensors, records, Access::write),
      items_in<std::uint32_t>("source_digests", tensors, source_digests, Access::write));
}

void on_load(Monitor& monitor, int pool, nb::handle records, nb::handle slots, canary::Owner owner,
             nb::handle source_digests) {
  Tensors tensors;
  const Numbers to("slots", slots);
  monitor.on_load(
      pool, items_in<const canary::Record>("records", tensors, records, Access::read), to.span(),
      owner,
      items_in<const std::uint32_t>("source_digests", tensors, source_digests, Access::read));
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
      .def("on_store", &on_store, "pool"_a, "slots"_a, "records"_a, "source_digests"_a.none())
      .def("on_load", &on_load, "pool"_a, "records"_a, "slots"_a, "owner"_a,
           "source_digests"_a.none())
      .def("detach_pool", &Monitor::detach_pool)
      .def("set_sweep_source", &set_sweep_source)
      .def("log_to",
           [](Monitor& self, const std::string& path) {
             self.log_to(path.empty() ? nullptr : std::make_shared<canary::FileSink>(path));
           })
      .def("begin_step", &begin_step, "batch"_a, "stream"_a.none())
      .def("end_step", &end_step, "batch"_a, "stream"_a.none())
      .def("begin_replay", &begin_replay, "batch"_a, "stream"_a.none())
      .def("verify_now", &verify_now, "moment"_a, "owner"_a, "row"_a, "begin"_a, "end"_a,
           "tables"_a, "stream"_a.none())
      .def(
          "stamp_now",
          [](Monitor& self, nb::handle batch, nb::handle stream) {
            const BatchView b(batch);
            const Stream s = stream_of(stream, batch, b);
            const nb::gil_scoped_release release;
            self.stamp_now(b.view, s);
          },
          "batch"_a, "stream"_a.none())
      .def("request_digest",
           [](const Monitor& self, std::int64_t row, std::int64_t length, nb::handle tables) {
             const BatchView b(tables);
             return self.request_digest(row, length, b.view);
           })
      .def("request_digests", &request_digests, "pool"_a, "batch"_a, "digests"_a, "stream"_a.none())
      .def("poll", &poll)
      .def("wait",
           [](Monitor& self) {
             const nb::gil_scoped_release release;
             self.wait();
           })
      .def("flush",
           [](Monitor& self) {
             const nb::gil_scoped_release release;
             self.flush();
           })
      .def("tainted", &tainted)
      .def("stats", &stats)
      .def("pool_stats", &pool_stats)
      .def("health", &health)
      .def("events", &events)
      .def("pool_events", &pool_events)
      .def("options",
           [](const Monitor& self) {
             return canary::to_json({.options = self.options(), .violations_file = {}});
           })
      .def("num_sources", &Monitor::num_sources)
      .def("digest_of", &Monitor::digest_of)
      .def("device",
           [](const Monitor& self, int pool) { return device_string(self.pool(pool).device); })
      .def("set_record",
           [](Monitor& self, int pool, std::int64_t slot, nb::handle record) {
             Tensors tensors;
             const auto records =
                 items_in<const canary::Record>("record", tensors, record, Access::read);
             check_entries("record", records.size(), "one slot", 1);
             if (slot < 0 || slot >= self.pool(pool).num_slots)
               throw nb::index_error("no such slot");
             self.set_record(pool, slot, records.front());
           })
      .def("slot_bytes",
           [](const Monitor& self, int pool, std::int64_t slot) {
             const std::vector<std::uint8_t> bytes = self.slot_bytes(pool, slot);
             return nb::bytes(bytes.data(), bytes.size());
           })
      .def("metrics_text",
           [](const Monitor& self, const std::string& name) {
             const canary::MetricsSample sample = canary::metrics_sample(self, name);
             return canary::metrics_text({&sample, 1});
           })
      .def("state", [](const Monitor& self, int pool,
                       std::int64_t slot) { return canary::name_of(self.state(pool, slot)); })
      .def("records",
           [](nb::handle self, int pool) {
             return bytes_of(self, nb::cast<Monitor&>(self).records(pool));
           })
      .def("ledger", [](nb::handle self,
                        int pool) { return bytes_of(self, nb::cast<Monitor&>(self).ledger(pool)); })
      .def("source_digests", [](nb::handle self, int pool) {
        return bytes_of(self, nb::cast<Monitor&>(self).source_digests(pool));
      });
  m.attr("metrics_type") = canary::kMetricsType;
}

}  // namespace serinus::python
