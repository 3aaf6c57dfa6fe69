// CUB's sum over a CTA, to the emulator.
#pragma once

#include "emulator.h"

namespace cub {

template <class T, int kThreads>
class BlockScan {
 public:
  struct TempStorage {
    T values[kThreads];
  };
  explicit BlockScan(TempStorage& storage) : values_(storage.values) {}

  void ExclusiveSum(T in, T& before, T& total) {
    values_[threadIdx.x] = in;
    __syncthreads();
    before = total = 0;
    for (unsigned i = 0; i < kThreads; ++i) {
      if (i < threadIdx.x) before += values_[i];
      total += values_[i];
    }
    __syncthreads();
  }
  /// `combine` is associative, `start` its neutral element.
  template <class Combine>
  void ExclusiveScan(T in, T& before, T start, const Combine& combine, T& total) {
    values_[threadIdx.x] = in;
    __syncthreads();
    before = total = start;
    for (unsigned i = 0; i < kThreads; ++i) {
      if (i < threadIdx.x) before = combine(before, values_[i]);
      total = combine(total, values_[i]);
    }
    __syncthreads();
  }
  template <int kEach>
  void ExclusiveSum(T (&in)[kEach], T (&before)[kEach], T& total) {
    T sum = 0;
    for (const T x : in) sum += x;
    T at;
    ExclusiveSum(sum, at, total);
    for (int i = 0; i < kEach; ++i) {
      const T x = in[i];
      before[i] = at;
      at += x;
    }
  }

 private:
  T* values_;
};

}  // namespace cub
