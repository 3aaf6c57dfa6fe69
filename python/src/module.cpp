// serinus._core: the library's entry points over Python's tensors. Thin on purpose: arguments are
// viewed and handed on, whatever is convenient about the package is written in Python beside it.
#include <nanobind/nanobind.h>

#include <serinus/version.h>

#include "bind.h"

NB_MODULE(_core, m) {
  using namespace serinus::python;
  m.attr("__version__") = serinus::version_string();
  bind_errors(m);
  bind_machine(m);
  bind_sparse_mla(m);
  bind_canary_sglang(m);
  bind_layouts(m);
  bind_monitor(m);
  bind_replay(m);
  bind_config(m);
  bind_ranks(m);
  bind_dump(m);
  bind_inject(m);
}
