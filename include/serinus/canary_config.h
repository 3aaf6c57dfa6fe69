// The canary's configuration: from code, from a JSON file, from the environment, and in SGLang's
// own words. It is read once; what a Monitor was made with never changes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include <serinus/canary.h>

namespace serinus::canary {

/// Everything that can be configured from outside. Each setting is a key of the file and, in
/// capitals after SERINUS_CANARY_, a variable: `records_per_step` and
/// SERINUS_CANARY_RECORDS_PER_STEP. The keys are the names of the fields of Options, and
/// violations_file. Words: format serinus, sglang; depth none, partial, all; mode none, log, raise,
/// quarantine; verify rolling, all; booleans true, false. SGLang's flags mean the same as keys
/// (kv_canary, kv_canary_real_data, kv_canary_sweep_interval) and variables (SERINUS_KV_CANARY,
/// SERINUS_KV_CANARY_REAL_DATA, SERINUS_KV_CANARY_SWEEP_INTERVAL).
struct Config {
  Options options;
  std::string violations_file;  ///< violations are appended as JSON lines (FileSink); empty = no
};

/// A Monitor with these options, and its violations in the file if one is named.
Monitor make_monitor(const Config& config);

/// Applies a JSON object to `config`. Throws InputError (naming `file`, the key and what is wrong)
/// for anything else than one object of known keys with values of their kind and range.
void apply_json(Config& config, std::string_view json, const std::string& file);

/// Looks a variable up; null = not set.
using Environment = std::function<const char*(const char*)>;

/// Applies the variables that are set and not empty. Words are trimmed, in any case. Throws
/// ValueError naming the variable.
void apply_environment(Config& config, const Environment& environment);

/// `base`, then the file (an empty name: the one that SERINUS_CANARY_CONFIG names, if it is set),
/// then the environment: the later wins. Throws InputError where the file cannot be read.
Config read_config(const Config& base = {}, const std::string& file = {},
                   const Environment& environment = {});

/// read_config() of this process, made at the first call and never again: nothing that changes
/// later, in the file or the environment, has an effect.
const Config& process_config();

/// SGLang's three flags (--kv-canary, --kv-canary-real-data, --kv-canary-sweep-interval), with its
/// words, defaults and errors: ValueError for an unknown word, and for a sweep interval above 0
/// with mode none. Everything else keeps its default, format sglang included.
Options options_from_flags(std::string_view kv_canary = "none",
                           std::string_view kv_canary_real_data = "none",
                           std::int64_t kv_canary_sweep_interval = 0);

/// One JSON object on one line; apply_json() reads it back.
std::string to_json(const Config& config);

}  // namespace serinus::canary
