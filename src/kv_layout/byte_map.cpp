// Draws a layout: a bar for a page, and a bar for one token of every part in which segments take
// turns.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include <serinus/kv_layout.h>

namespace serinus {

namespace {

// A piece of a bar. Without a label it is padding.
struct Cell {
  std::string label;
  std::string detail;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  bool elided = false;  // stands for several that there is no room for
};

// Segments whose tokens interleave, in the order of their bytes.
struct Part {
  std::vector<const KvSegment*> segments;
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::string label() const {
    if (segments.size() > 3) {
      return fmt::format("{}..{}", segments.front()->name, segments.back()->name);
    }
    std::string s;
    for (const KvSegment* g : segments) s += (s.empty() ? "" : "+") + g->name;
    return s;
  }
  bool alike(const Part& other) const {
    return std::ranges::equal(segments, other.segments, [&](const auto* a, const auto* b) {
      return a->offset - begin == b->offset - other.begin && a->bytes == b->bytes &&
             a->token_stride == b->token_stride;
    });
  }
};

std::string printable(std::string_view s) {
  std::string out(s);
  for (char& c : out) {
    if (c < ' ' || c > '~') c = '?';
  }
  return out;
}

// `text` in exactly `width` columns.
std::string fit(std::string_view text, std::size_t width) {
  std::string s = printable(text);
  if (s.size() > width) {
    s.resize(width);
    if (width >= 4) s.replace(width - 2, 2, "..");
  }
  s.resize(width, ' ');
  return s;
}

std::string repeat(std::string_view s, std::size_t n) {
  std::string out;
  for (std::size_t i = 0; i < n; ++i) out += s;
  return out;
}

std::vector<Part> parts_of(const KvLayout& layout, int buffer) {
  std::vector<const KvSegment*> segments;
  for (const KvSegment& s : layout.segments) {
    if (s.buffer == buffer) segments.push_back(&s);
  }
  std::ranges::sort(segments, {}, &KvSegment::offset);
  std::vector<Part> parts;
  for (const KvSegment* s : segments) {
    const std::int64_t end = s->offset + (layout.page_size - 1) * s->token_stride + s->bytes;
    if (parts.empty() || s->offset >= parts.back().end) parts.push_back({{}, s->offset, end});
    parts.back().segments.push_back(s);
    parts.back().end = std::max(parts.back().end, end);
  }
  // The padding behind the last token's row belongs to the part, as that of the other rows does.
  std::int64_t limit = layout.page_bytes[static_cast<std::size_t>(buffer)];
  for (auto p = parts.rbegin(); p != parts.rend(); ++p) {
    const std::int64_t rows = layout.page_size * p->segments.front()->token_stride;
    p->end = std::clamp(p->begin + rows, p->end, limit);
    limit = p->begin;
  }
  return parts;
}

// Fills the gaps with padding, up to `end`.
std::vector<Cell> with_padding(std::vector<Cell> cells, std::int64_t begin, std::int64_t end) {
  std::vector<Cell> out;
  std::int64_t at = begin;
  for (Cell& c : cells) {
    if (c.begin > at) out.push_back({"", "", at, c.begin});
    at = c.end;
    out.push_back(std::move(c));
  }
  if (end > at) out.push_back({"", "", at, end});
  return out;
}

// Keeps the first cells and the last one where not all have room to be read.
std::vector<Cell> elide(std::vector<Cell> cells, std::size_t most) {
  if (cells.size() <= most) return cells;
  const std::size_t kept = most - 2;
  Cell gap{fmt::format("{} more", cells.size() - kept - 1), "", cells[kept].begin,
           cells[cells.size() - 2].end, true};
  std::vector<Cell> out(cells.begin(), cells.begin() + static_cast<std::ptrdiff_t>(kept));
  out.push_back(std::move(gap));
  out.push_back(cells.back());
  return out;
}

std::vector<std::size_t> widths_of(const std::vector<Cell>& cells, std::size_t columns) {
  const std::size_t share = std::max<std::size_t>(columns / cells.size(), 1);
  std::vector<std::size_t> widths;
  double bytes = 0;
  for (const Cell& c : cells) {
    // Wide enough for the offset below it and, where that is cheap, for its words.
    std::size_t want = std::to_string(c.begin).size();
    if (&c == &cells.back()) want += std::to_string(c.end).size() + 1;
    want = std::max({want, std::min<std::size_t>(c.label.size(), 12),
                     std::min<std::size_t>(c.detail.size(), 12)});
    widths.push_back(std::clamp<std::size_t>(want, 1, share));
    bytes += static_cast<double>(c.end - c.begin);
  }
  const std::size_t used = std::accumulate(widths.begin(), widths.end(), std::size_t{0});
  const std::size_t spare = columns > used ? columns - used : 0;
  double owed = 0;  // carries the fractions from cell to cell, so that the columns add up
  std::size_t given = 0;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    owed += static_cast<double>(spare) * static_cast<double>(cells[i].end - cells[i].begin) / bytes;
    const auto upto = i + 1 == cells.size() ? spare : static_cast<std::size_t>(owed);
    widths[i] += upto - given;
    given = upto;
  }
  return widths;
}

std::string bar(std::vector<Cell> cells, std::size_t width) {
  cells = elide(std::move(cells), std::max<std::size_t>(width / 10, 3));
  const std::vector<std::size_t> widths = widths_of(cells, width - cells.size() - 1);
  std::string top = "┌";
  std::string label = "│";
  std::string detail = "│";
  std::string bottom = "└";
  std::string numbers(width, ' ');
  const std::string last = std::to_string(cells.back().end);
  const std::size_t last_at = width - last.size();
  numbers.replace(last_at, last.size(), last);
  std::size_t column = 0;
  std::size_t free_from = 0;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const bool end = i + 1 == cells.size();
    const bool padding = cells[i].label.empty();
    top += repeat(cells[i].elided ? "╌" : "─", widths[i]) + (end ? "┐" : "┬");
    label += (padding ? repeat("░", widths[i]) : fit(cells[i].label, widths[i])) + "│";
    detail += (padding ? repeat("░", widths[i]) : fit(cells[i].detail, widths[i])) + "│";
    bottom += repeat(cells[i].elided ? "╌" : "─", widths[i]) + (end ? "┘" : "┴");
    const std::string number = std::to_string(cells[i].begin);
    if (column >= free_from && column + number.size() < last_at) {
      numbers.replace(column, number.size(), number);
      free_from = column + number.size() + 1;
    }
    column += widths[i] + 1;
  }
  return fmt::format("  {}\n  {}\n  {}\n  {}\n  {}\n", top, label, detail, bottom, numbers);
}

}  // namespace

std::string draw_byte_map(const KvLayout& layout, int width) {
  layout.validate();
  const auto columns = static_cast<std::size_t>(std::clamp(width, 48, 1000) - 2);
  std::string out;
  for (int b = 0; b < layout.num_buffers(); ++b) {
    const std::int64_t page_bytes = layout.page_bytes[static_cast<std::size_t>(b)];
    const std::vector<Part> parts = parts_of(layout, b);
    out += layout.num_buffers() > 1 ? fmt::format("buffer {}, a page of", b) : "a page of";
    out += fmt::format(" {} token{}: {} bytes\n", layout.page_size,
                       layout.page_size == 1 ? "" : "s", page_bytes);
    std::vector<Cell> cells;
    for (const Part& p : parts) {
      const std::int64_t token = p.segments.front()->token_stride;
      cells.push_back({p.label(),
                       layout.page_size == 1 ? p.segments.front()->meaning
                                             : fmt::format("{} x {} B", layout.page_size, token),
                       p.begin, p.end});
    }
    out += bar(with_padding(std::move(cells), 0, page_bytes), columns);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const Part& p = parts[i];
      const auto alike = [&](const Part& other) { return other.alike(p); };
      const std::int64_t stride = p.segments.front()->token_stride;
      // A lone segment that fills its stride is in the page's bar already.
      if (layout.page_size == 1 ||
          (p.segments.size() == 1 && p.segments.front()->bytes == stride) ||
          std::any_of(parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(i), alike)) {
        continue;
      }
      std::vector<Cell> token;
      for (const KvSegment* s : p.segments) {
        token.push_back({s->name, s->meaning, s->offset - p.begin, s->offset - p.begin + s->bytes});
      }
      const bool more =
          std::any_of(parts.begin() + static_cast<std::ptrdiff_t>(i) + 1, parts.end(), alike);
      const std::string label = p.label();
      out += fmt::format("a token of {}{}\n", fit(label, std::min(label.size(), columns - 30)),
                         more ? ", and its like" : "");
      const std::int64_t end = std::max(stride, token.back().end);
      out += bar(with_padding(std::move(token), 0, end), columns);
    }
  }
  return out;
}

}  // namespace serinus
