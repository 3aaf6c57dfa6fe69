#include "cli/fp8_gemm.h"

#include <cublasLt.h>
#include <dlfcn.h>

#include "base/raise.h"
#include "gpu/memory.h"

namespace serinus::cli {

namespace {

// A function of cuBLASLt, by name, with the type that its header gives it.
template <class F>
class Function {
 public:
  Function(void* library, const char* name)
      : name_(name), call_(reinterpret_cast<F*>(dlsym(library, name))) {}
  template <class... Args>
  void operator()(Args... args) const {
    const cublasStatus_t s = call_ == nullptr ? CUBLAS_STATUS_NOT_SUPPORTED : call_(args...);
    if (s == CUBLAS_STATUS_SUCCESS) return;
    raise(errors::Page::cuda_launch_failed,
          {{"name", name_}, {"got", "status " + std::to_string(static_cast<int>(s))}});
  }

 private:
  const char* name_;
  F* call_;
};
#define SERINUS_CUBLASLT(name)            \
  const Function<decltype(::name)> name { \
    library, #name                        \
  }

class Loaded : public Fp8Gemm {
 public:
  Loaded(void* library, Device device, std::span<const std::uint8_t> a,
         std::span<const std::uint8_t> b)
      : matmul_(library, "cublasLtMatmul"),
        a_(device, a.data(), a.size()),
        b_(device, b.data(), b.size()),
        c_(device, kN * kN * 2),
        work_(device, kWork) {
    SERINUS_CUBLASLT(cublasLtCreate);
    SERINUS_CUBLASLT(cublasLtMatmulDescCreate);
    SERINUS_CUBLASLT(cublasLtMatmulDescSetAttribute);
    SERINUS_CUBLASLT(cublasLtMatrixLayoutCreate);
    SERINUS_CUBLASLT(cublasLtMatmulPreferenceCreate);
    SERINUS_CUBLASLT(cublasLtMatmulPreferenceSetAttribute);
    SERINUS_CUBLASLT(cublasLtMatmulAlgoGetHeuristic);
    cublasLtCreate(&lt_);
    cublasLtMatmulDescCreate(&op_, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    const cublasOperation_t transposed = CUBLAS_OP_T;
    cublasLtMatmulDescSetAttribute(op_, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                   sizeof transposed);
    cublasLtMatrixLayoutCreate(&in_, CUDA_R_8F_E4M3, kN, kN, kN);
    cublasLtMatrixLayoutCreate(&out_, CUDA_R_16BF, kN, kN, kN);
    cublasLtMatmulPreference_t preference = nullptr;
    cublasLtMatmulPreferenceCreate(&preference);
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                         &kWork, sizeof kWork);
    int found = 0;
    cublasLtMatmulAlgoGetHeuristic(lt_, op_, in_, in_, out_, out_, preference, 1, &best_, &found);
  }

  void run() override {
    const float one = 1, zero = 0;
    matmul_(lt_, op_, &one, a_.data(), in_, b_.data(), in_, &zero, c_.data(), out_, c_.data(), out_,
            &best_.algo, work_.data(), kWork, nullptr);
  }

 private:
  static constexpr std::size_t kWork = std::size_t{64} << 20;
  Function<decltype(::cublasLtMatmul)> matmul_;
  gpu::Memory a_, b_, c_, work_;
  // Kept, like the library, until the command ends.
  cublasLtHandle_t lt_ = nullptr;
  cublasLtMatmulDesc_t op_ = nullptr;
  cublasLtMatrixLayout_t in_ = nullptr, out_ = nullptr;
  cublasLtMatmulHeuristicResult_t best_{};
};
#undef SERINUS_CUBLASLT

}  // namespace

std::unique_ptr<Fp8Gemm> Fp8Gemm::load(Device device, std::span<const std::uint8_t> a,
                                       std::span<const std::uint8_t> b) {
  const std::string name = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
  void* library = dlopen(name.c_str(), RTLD_NOW);
  if (library == nullptr) return nullptr;
  return std::make_unique<Loaded>(library, device, a, b);
}

}  // namespace serinus::cli
