// Which of a pool's bytes the sglang format fingerprints.
#pragma once

#include <span>
#include <vector>

#include <serinus/canary_sglang.h>

namespace serinus::canary::sglang {

/// The runs that the format can address, at most four: multiples of 16 bytes at a stride that is
/// one, too. Sources that follow each other in memory count as one run. A run keeps the place and
/// the key_offset of its first source.
inline std::vector<Source> kv_runs(std::span<const Source> sources) {
  std::vector<Source> runs;
  for (std::size_t i = 0; i < sources.size() && runs.size() < kMaxRealKvSources;) {
    Source run = sources[i++];
    while (i < sources.size() && sources[i].base == run.base &&
           sources[i].token_stride == run.token_stride &&
           sources[i].offset == run.offset + run.bytes) {
      run.bytes += sources[i++].bytes;
    }
    const bool fits = run.token_stride > 0 && run.token_stride % 16 == 0 && run.bytes % 16 == 0 &&
                      run.bytes <= run.token_stride && run.page_stride - run.offset >= 16;
    if (fits) runs.push_back(run);
  }
  return runs;
}

}  // namespace serinus::canary::sglang
