// Pool dumps: evidence written out, and a dump of anybody's checked.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <serinus/canary_dump.h>

#include "bind.h"
#include "named.h"
#include "numbers.h"
#include "violations.h"

namespace serinus::python {

namespace {

canary::DumpRow row_of(nb::handle given) {
  canary::DumpRow row;
  const nb::object get = given.attr("get");
  row.owner = number_in<canary::Owner>("owner", nb::object(given["owner"]));
  row.row = number_in("row", nb::object(given["row"]));
  narrow("pools", get("pools"), row.pools);
  narrow("cells", nb::object(given["cells"]), row.cells);
  narrow("tokens", get("tokens"), row.tokens);
  return row;
}

void write_dump(canary::Monitor& monitor, const std::string& path, const std::string& bytes,
                const std::vector<std::pair<int, std::int64_t>>& listed, const nb::list& rows) {
  std::vector<canary::DumpRow> tables;
  for (const nb::handle row : rows) tables.push_back(row_of(row));
  canary::DumpOptions options;
  options.bytes = named<canary::DumpBytes>("bytes", bytes,
                                           {{"none", canary::DumpBytes::none},
                                            {"listed", canary::DumpBytes::listed},
                                            {"all", canary::DumpBytes::all}});
  options.listed = listed;
  options.rows = tables;
  const nb::gil_scoped_release release;
  canary::write_dump(monitor, path, options);
}

nb::dict scan(const std::string& path, std::size_t limit) {
  canary::ScanResult found;
  std::vector<std::string> names;
  std::uint64_t step = 0;
  {
    const nb::gil_scoped_release release;
    const canary::Dump dump(path);
    for (const canary::DumpPool& pool : dump.pools) names.push_back(pool.spec.name);
    step = dump.step;
    found = canary::scan(dump, limit);
  }
  nb::dict out;
  out["step"] = step;
  out["slots"] = found.slots;
  out["written"] = found.written;
  out["bytes_checked"] = found.bytes_checked;
  out["cells"] = found.cells;
  out["more"] = found.more;
  nb::list violations;
  for (const canary::Violation& v : found.violations) {
    const auto pool = static_cast<std::size_t>(v.pool);
    violations.append(described(v, pool < names.size() ? names[pool] : std::string()));
  }
  out["violations"] = violations;
  return out;
}

}  // namespace

void bind_dump(nb::module_& m) {
  m.def("write_dump", &write_dump);
  m.def("scan", &scan);
}

}  // namespace serinus::python
