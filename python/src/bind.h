// What module.cpp puts together: a function a capability.
#pragma once

#include <nanobind/nanobind.h>

namespace serinus::python {

void bind_errors(nanobind::module_& m);
void bind_machine(nanobind::module_& m);
void bind_sparse_mla(nanobind::module_& m);
void bind_canary_sglang(nanobind::module_& m);
void bind_layouts(nanobind::module_& m);
void bind_monitor(nanobind::module_& m);
void bind_replay(nanobind::module_& m);
void bind_config(nanobind::module_& m);
void bind_ranks(nanobind::module_& m);
void bind_dump(nanobind::module_& m);
void bind_inject(nanobind::module_& m);

}  // namespace serinus::python
