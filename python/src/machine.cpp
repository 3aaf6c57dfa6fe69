// What `python -m serinus doctor` asks the library.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "base/parallel.h"
#include "bind.h"
#include "gpu/device.h"
#include "sparse_mla/cpu/kernels.h"

namespace serinus::python {

namespace nb = nanobind;

void bind_machine(nb::module_& m) {
  m.def("machine", [] {
    const gpu::Survey survey = gpu::survey();
    nb::dict cuda;
    cuda["built"] = survey.compiled;
    cuda["toolkit_version"] = survey.toolkit_version;
    cuda["driver_version"] = survey.driver_version;
    cuda["problem"] = survey.problem;
    nb::list devices;
    for (const gpu::DeviceInfo& d : survey.devices) {
      nb::dict device;
      device["index"] = d.index;
      device["name"] = d.name;
      device["compute_capability"] = nb::make_tuple(d.major, d.minor);
      device["multiprocessors"] = d.multiprocessors;
      device["memory_bytes"] = d.memory_bytes;
      device["usable"] = d.usable;
      device["sparse_mla"] = d.sparse_mla;
      devices.append(device);
    }
    cuda["devices"] = devices;
    nb::list paths;
    for (const sparse_mla::Kernels* path : sparse_mla::cpu_paths()) paths.append(path->name);
    nb::dict out;
    out["cores"] = resolve_threads(0);
    out["attention_paths"] = paths;
    out["cuda"] = cuda;
    return out;
  });
}

}  // namespace serinus::python
