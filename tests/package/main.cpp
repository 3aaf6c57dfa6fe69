// Uses a header of each capability, and checks that an answer comes back through the linked
// library.
#include <cstdio>

#include <serinus/canary.h>
#include <serinus/error.h>
#include <serinus/kv_layout.h>
#include <serinus/sparse_mla.h>
#include <serinus/tensor.h>
#include <serinus/version.h>

int main() {
  const serinus::ErrorEntry* page = serinus::find_error("SRN1001");
  if (page == nullptr) return 1;
  float x[6] = {};
  const serinus::TensorView view(x, serinus::DType::f32, {2, 3});
  if (!view.is_contiguous()) return 1;
  std::printf("serinus %s: %s\n", serinus::version_string(), page->title.data() ? "ok" : "");
  return 0;
}
