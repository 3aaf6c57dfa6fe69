// CUB's sum over a CTA, to the emulator.
#pragma once

#include "cub/block/block_scan.cuh"

namespace cub {

template <class T, int kThreads>
class BlockReduce {
 public:
  using TempStorage = typename BlockScan<T, kThreads>::TempStorage;
  explicit BlockReduce(TempStorage& storage) : scan_(storage) {}
  T Sum(T in) {
    T before, total;
    scan_.ExclusiveSum(in, before, total);
    return total;
  }

 private:
  BlockScan<T, kThreads> scan_;
};

}  // namespace cub
