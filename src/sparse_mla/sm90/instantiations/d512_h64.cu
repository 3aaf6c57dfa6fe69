#include "sparse_mla/sm90/launch.cuh"

namespace serinus::sparse_mla::sm90 {
template void launch<512, 64>(const KernelParams&, const Plan&, Stream);
}
