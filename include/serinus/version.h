// Version of the library, and of every byte format that outlives a process.
#pragma once

#include <cstdint>

namespace serinus {

inline constexpr int kVersionMajor = 0;
inline constexpr int kVersionMinor = 1;
inline constexpr int kVersionPatch = 0;

/// Version of the 32-byte `serinus` slot record (docs/design/canary.md). A record written by
/// another version must not be compared.
inline constexpr std::uint32_t kRecordVersion = 1;

/// Version of the pool dump file (docs/design/dump.md). Readers refuse what they do not know.
inline constexpr std::uint32_t kDumpVersion = 1;

/// "major.minor.patch". Static storage.
const char* version_string() noexcept;

}  // namespace serinus
