// Stand-ins for the paths that this build leaves out; see CMakeLists.txt.
#include "sparse_mla/cpu/kernels.h"

namespace serinus::sparse_mla {

#ifdef SERINUS_NO_HIGHWAY
std::span<const Kernels* const> highway_paths() {
  return {};
}
#endif
#ifdef SERINUS_NO_AVX512_BF16
const Kernels* avx512_bf16_path() {
  return nullptr;
}
#endif

}  // namespace serinus::sparse_mla
