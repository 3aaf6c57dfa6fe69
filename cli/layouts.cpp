// `serinus layouts`: the named KV layouts, as a list, as a picture and as JSON.
#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <serinus/kv_layout.h>

#include "cli/choice.h"
#include "cli/commands.h"
#include "cli/kv_dtype.h"
#include "cli/terminal.h"

namespace serinus::cli {

namespace {

using Json = nlohmann::ordered_json;

struct Arguments {
  std::string name;
  std::int64_t page = 0;
  std::int64_t heads = 0;
  std::int64_t head_size = 0;
  std::optional<DType> dtype;
  HeadOrder order = HeadOrder::usual;
  bool json = false;
};

// What a picture of an mha_* layout shows where the heads were left out.
constexpr std::int64_t kShownHeads = 8;
constexpr std::int64_t kShownHeadSize = 128;

// In a list, an option applies to the layouts that take it.
KvLayout layout_of(std::string_view name, const Arguments& args) {
  const bool mha = name.starts_with("mha_");
  const bool lists = args.name.empty();
  KvLayoutOptions options{.page_size = args.page};
  if (mha || !lists) {
    options.heads = args.heads;
    options.head_size = args.head_size;
    options.dtype = args.dtype;
  }
  if (!lists || name == "mha_blocks_first" || name == "mha_packed") options.head_order = args.order;
  if (mha && options.heads == 0) options.heads = kShownHeads;
  if (mha && options.head_size == 0) options.head_size = kShownHeadSize;
  return kv_layout(name, options);
}

std::int64_t page_bytes(const KvLayout& layout) {
  std::int64_t sum = 0;
  for (const std::int64_t bytes : layout.page_bytes) sum += bytes;
  return sum;
}

std::int64_t padding(const KvLayout& layout) {
  return page_bytes(layout) - layout.page_size * layout.token_bytes();
}

Json to_json(const KvLayout& layout) {
  Json segments = Json::array();
  for (const KvSegment& s : layout.segments) {
    segments.push_back({{"name", s.name},
                        {"role", name_of(s.role)},
                        {"buffer", s.buffer},
                        {"offset", s.offset},
                        {"token_stride", s.token_stride},
                        {"bytes", s.bytes},
                        {"head", s.head},
                        {"meaning", s.meaning}});
  }
  return {{"name", layout.name},
          {"token_bytes", layout.token_bytes()},
          {"page_size", layout.page_size},
          {"page_bytes", layout.page_bytes},
          {"padding_bytes", padding(layout)},
          {"source", layout.source},
          {"segments", std::move(segments)}};
}

std::string list(const Arguments& args, const Style& style) {
  std::string out =
      style.bold(fmt::format("{:<17} {:>12}  {:>5} {:>11} {:>8}  {}\n", "layout", "hashed bytes",
                             "page", "page bytes", "padding", "used by"));
  for (const std::string_view name : kv_layout_names()) {
    const KvLayout l = layout_of(name, args);
    out += fmt::format("{:<17} {:>12}  {:>5} {:>11} {:>8}  {}\n", name, l.token_bytes(),
                       l.page_size, page_bytes(l), padding(l), style.dim(l.source));
  }
  if (args.heads == 0 && args.head_size == 0) {
    out += fmt::format(
        "\nmha_* with {} heads of {} elements here; --heads, --head-size and --dtype "
        "set them.\n",
        kShownHeads, kShownHeadSize);
  }
  out +=
      "serinus layouts NAME draws one. Padding counts bytes a page that no segment holds; they "
      "are never hashed.\n";
  return out;
}

// The segments as rows; of many heads, the first and the last ones.
std::string table(const KvLayout& layout, const Style& style) {
  constexpr std::size_t kMostRows = 12;
  std::string out =
      style.bold(fmt::format("{:<12} {:<11} {:>6} {:>9} {:>14} {:>7}  {}\n", "segment", "role",
                             "buffer", "offset", "token to token", "bytes", "holds"));
  const std::size_t n = layout.segments.size();
  for (std::size_t i = 0; i < n; ++i) {
    if (n > kMostRows && i == kMostRows / 2) {
      const std::size_t left_out = n - kMostRows + 1;
      out += style.dim(fmt::format("... {} more\n", left_out));
      i += left_out;
    }
    const KvSegment& s = layout.segments[i];
    out += fmt::format("{:<12} {:<11} {:>6} {:>9} {:>14} {:>7}  {}\n", s.name, name_of(s.role),
                       s.buffer, s.offset, s.token_stride, s.bytes, style.dim(s.meaning));
  }
  return out;
}

std::string picture(const KvLayout& layout, const Style& style) {
  return fmt::format("{}  {} bytes a token\n{}\n\n{}\n{}", style.bold(layout.name),
                     layout.token_bytes(), style.dim(layout.source),
                     draw_byte_map(layout, static_cast<int>(output_width())), table(layout, style));
}

void layouts(const Arguments& args) {
  const Style style(output_has_colours());
  std::string out;
  if (args.name.empty() && args.json) {
    Json all = Json::array();
    for (const std::string_view name : kv_layout_names()) {
      all.push_back(to_json(layout_of(name, args)));
    }
    out = all.dump(2) + "\n";
  } else if (args.name.empty()) {
    out = list(args, style);
  } else if (args.json) {
    out = to_json(layout_of(args.name, args)).dump(2) + "\n";
  } else {
    out = picture(layout_of(args.name, args), style);
  }
  std::fputs(out.c_str(), stdout);
}

}  // namespace

void add_layouts(CLI::App& app, int& exit_code) {
  auto args = std::make_shared<Arguments>();
  CLI::App* cmd = app.add_subcommand("layouts", "The named KV layouts: a list, or one drawn");
  cmd->add_option("NAME", args->name, "The layout to draw; without one, all are listed");
  cmd->add_option("--page", args->page, "Tokens a page (default: the layout's usual page)")
      ->check(CLI::Range(1, 65536));
  cmd->add_option("--heads", args->heads, "KV heads, for mha_*")->check(CLI::Range(1, 1024));
  cmd->add_option("--head-size", args->head_size, "Elements a head, for mha_*")
      ->check(CLI::Range(1, 65536));
  add_kv_dtype(*cmd, args->dtype);
  add_choice(*cmd, "--order", args->order, {{"nhd", HeadOrder::nhd}, {"hnd", HeadOrder::hnd}},
             "Order of tokens and heads, for mha_blocks_first and mha_packed");
  cmd->add_flag("--json", args->json, "Print JSON");
  cmd->callback([args, &exit_code] {
    layouts(*args);
    exit_code = kFine;
  });
}

}  // namespace serinus::cli
