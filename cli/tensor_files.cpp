#include "cli/tensor_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/raise.h"
#include "base/whole_file.h"

namespace serinus::cli {

namespace {

static_assert(std::endian::native == std::endian::little, "tensor files are little-endian");

using errors::Page;
using Json = nlohmann::json;

constexpr std::string_view kNpy = ".npy";
constexpr std::string_view kSafetensors = ".safetensors";

[[noreturn]] void malformed(std::string_view file, std::string_view format, std::string why) {
  raise(Page::tensor_file_malformed, {{"argument", std::string(file)},
                                      {"file", std::string(file)},
                                      {"format", std::string(format)},
                                      {"got", std::move(why)}});
}

[[noreturn]] void wrong_dtype(std::string_view file, std::string_view name, std::string_view want,
                              std::string_view got) {
  raise(Page::tensor_file_dtype, {{"name", std::string(name)},
                                  {"file", std::string(file)},
                                  {"want", std::string(want)},
                                  {"got", std::string(got)}});
}

// Bytes of a dense tensor, if they are as many as 63 bits hold and the dimensions as many as a
// TensorView's.
std::optional<std::uint64_t> dense_bytes(std::span<const std::int64_t> shape, DType dtype) {
  if (shape.size() > TensorView::kMaxRank) return std::nullopt;
  std::int64_t n = size_of(dtype);
  bool empty = false;
  for (const std::int64_t d : shape) {
    if (d < 0) return std::nullopt;
    empty |= d == 0;
    if (d != 0 && __builtin_mul_overflow(n, d, &n)) return std::nullopt;
  }
  return empty ? 0 : static_cast<std::uint64_t>(n);
}

struct NamedDType {
  std::string_view name;
  DType dtype;
};

constexpr NamedDType kNpyDTypes[] = {{"|u1", DType::u8},  {"<u2", DType::bf16},
                                     {"<i4", DType::i32}, {"<i8", DType::i64},
                                     {"<f4", DType::f32}, {"<f8", DType::f64}};
constexpr NamedDType kSafetensorsDTypes[] = {
    {"F8_E4M3", DType::e4m3}, {"BF16", DType::bf16}, {"U8", DType::u8},  {"I32", DType::i32},
    {"I64", DType::i64},      {"F32", DType::f32},   {"F64", DType::f64}};

std::optional<DType> find_dtype(std::span<const NamedDType> known, std::string_view name) {
  for (const NamedDType& k : known) {
    if (k.name == name) return k.dtype;
  }
  return std::nullopt;
}

std::string names_of(std::span<const NamedDType> known) {
  std::vector<std::string_view> names;
  for (const NamedDType& k : known) names.push_back(k.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string_view text_of(std::span<const std::uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Text from a file, made fit to be printed.
std::string printable(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, 60)) out += c >= 0x20 && c < 0x7f ? c : '?';
  return text.size() > 60 ? out + "..." : out;
}

// ---------------------------------------------------------------- .npy

// The header is a Python dict: {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
class NpyHeader {
 public:
  NpyHeader(std::string_view text, std::string_view file) : rest_(text), file_(file) {
    expect('{');
    while (!accept('}')) {
      const std::string_view key = string();
      expect(':');
      if (key == "descr" && !descr) {
        descr = string();
      } else if (key == "fortran_order" && !fortran_order) {
        fortran_order = boolean();
      } else if (key == "shape" && !shape) {
        shape = tuple();
      } else {
        fail(fmt::format("the key {} is unknown or there twice", printable(key)));
      }
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    if (!rest_.empty()) fail("there is text after its dict");
    if (!descr || !fortran_order || !shape) fail("it lacks descr, fortran_order or shape");
  }

  std::optional<std::string_view> descr;
  std::optional<bool> fortran_order;
  std::optional<std::vector<std::int64_t>> shape;

 private:
  [[noreturn]] void fail(std::string_view why) const {
    malformed(file_, kNpy, fmt::format("its header is not as numpy writes it: {}", why));
  }

  void skip_space() {
    const auto n = rest_.find_first_not_of(" \t\r\n");
    rest_.remove_prefix(n == std::string_view::npos ? rest_.size() : n);
  }

  bool accept(char c) {
    skip_space();
    if (!rest_.starts_with(c)) return false;
    rest_.remove_prefix(1);
    return true;
  }

  void expect(char c) {
    if (!accept(c)) fail(fmt::format("'{}' expected before '{}'", c, printable(rest_)));
  }

  std::string_view string() {
    skip_space();
    const char quote = rest_.empty() ? '\0' : rest_.front();
    const auto end = quote == '\'' || quote == '"' ? rest_.find(quote, 1) : std::string_view::npos;
    if (end == std::string_view::npos) {
      fail(fmt::format("a string expected before '{}'", printable(rest_)));
    }
    const std::string_view s = rest_.substr(1, end - 1);
    rest_.remove_prefix(end + 1);
    return s;
  }

  bool boolean() {
    skip_space();
    for (const bool value : {true, false}) {
      const std::string_view word = value ? "True" : "False";
      if (!rest_.starts_with(word)) continue;
      rest_.remove_prefix(word.size());
      return value;
    }
    fail("fortran_order is neither True nor False");
  }

  std::int64_t integer() {
    skip_space();
    std::size_t digits = 0;
    std::int64_t n = 0;
    for (; digits < rest_.size() && rest_[digits] >= '0' && rest_[digits] <= '9'; ++digits) {
      if (__builtin_mul_overflow(n, std::int64_t{10}, &n) ||
          __builtin_add_overflow(n, std::int64_t{rest_[digits] - '0'}, &n)) {
        fail("a size is beyond 64 bits");
      }
    }
    if (digits == 0) fail(fmt::format("a size expected before '{}'", printable(rest_)));
    rest_.remove_prefix(digits);
    return n;
  }

  std::vector<std::int64_t> tuple() {
    std::vector<std::int64_t> sizes;
    expect('(');
    while (!accept(')')) {
      sizes.push_back(integer());
      if (sizes.size() > TensorView::kMaxRank) fail("it has more than 6 dimensions");
      if (!accept(',')) {
        expect(')');
        break;
      }
    }
    return sizes;
  }

  std::string_view rest_, file_;
};

std::string npy_header(const Tensor& t) {
  std::string_view descr;
  const DType stored = t.dtype() == DType::e4m3 ? DType::u8 : t.dtype();
  for (const NamedDType& k : kNpyDTypes) {
    if (k.dtype == stored) descr = k.name;
  }
  std::string dict =
      fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}{}), }}", descr,
                  fmt::join(t.shape(), ", "), t.shape().size() == 1 ? "," : "");
  dict.resize((10 + dict.size() + 1 + 63) / 64 * 64 - 10 - 1, ' ');
  dict += '\n';
  std::string head("\x93NUMPY\x01\x00", 8);
  head += static_cast<char>(dict.size() & 0xff);
  head += static_cast<char>(dict.size() >> 8);
  return head + dict;
}

// ---------------------------------------------------------------- .safetensors

Json parse_header(std::string_view text, std::string_view file) {
  // A header is three levels deep: an object of objects with arrays. nlohmann-json keeps the last
  // of two members with one name, so doubles are looked for here.
  std::vector<std::set<std::string>> names;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > 3) malformed(file, kSafetensors, "its header is nested too deep");
    if (event == Json::parse_event_t::object_start) {
      names.resize(static_cast<std::size_t>(depth) + 1);
      names.back().clear();
    }
    if (event == Json::parse_event_t::key &&
        !names.back().insert(parsed.get<std::string>()).second) {
      malformed(file, kSafetensors,
                fmt::format("the name {} is there twice", printable(parsed.get<std::string>())));
    }
    if (event == Json::parse_event_t::object_end) names.resize(static_cast<std::size_t>(depth));
    return true;
  };
  try {
    return Json::parse(text, watch);
  } catch (const Json::exception& e) {
    malformed(file, kSafetensors, fmt::format("its header is no JSON: {}", printable(e.what())));
  }
}

struct Entry {
  std::string name;
  DType dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t begin, end;
};

Entry parse_entry(const std::string& name, const Json& j, std::string_view file) {
  const auto fail = [&](std::string_view why) {
    malformed(file, kSafetensors, fmt::format("tensor {} {}", printable(name), why));
  };
  if (!j.is_object() || j.size() != 3 || !j.contains("dtype") || !j.contains("shape") ||
      !j.contains("data_offsets")) {
    fail("must have dtype, shape and data_offsets");
  }
  const Json& dtype = j["dtype"];
  const Json& shape = j["shape"];
  const Json& offsets = j["data_offsets"];
  const auto all_sizes = [](const Json& a) {
    return a.is_array() && std::ranges::all_of(a, [](const Json& n) {
             return n.is_number_unsigned() &&
                    n.get<std::uint64_t>() <= std::numeric_limits<std::int64_t>::max();
           });
  };
  if (!dtype.is_string()) fail("has a dtype that is no string");
  if (!all_sizes(shape)) fail("has a shape that is no list of sizes");
  if (!all_sizes(offsets) || offsets.size() != 2) fail("has data_offsets that are not two numbers");
  const auto known = find_dtype(kSafetensorsDTypes, dtype.get_ref<const std::string&>());
  if (!known) {
    wrong_dtype(file, printable(name), "one of " + names_of(kSafetensorsDTypes),
                printable(dtype.get_ref<const std::string&>()));
  }
  Entry e{name, *known, shape.get<std::vector<std::int64_t>>(), offsets[0].get<std::uint64_t>(),
          offsets[1].get<std::uint64_t>()};
  const auto bytes = dense_bytes(e.shape, e.dtype);
  if (!bytes) fail("has a shape that memory cannot hold");
  if (e.begin > e.end || e.end - e.begin != *bytes) {
    fail(fmt::format("needs {} bytes, but its data_offsets are {} and {}", *bytes, e.begin, e.end));
  }
  return e;
}

// ---------------------------------------------------------------- files

std::vector<std::uint8_t> read_file(const std::string& path) {
  const auto unreadable = [&](std::string why) {
    raise(Page::input_file_unreadable, {{"got", path}, {"why", std::move(why)}});
  };
  std::error_code failed;
  if (!std::filesystem::is_regular_file(path, failed)) {
    unreadable(failed ? failed.message() : "it is no regular file");
  }
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  if (!in) unreadable(std::generic_category().message(errno));
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(in.tellg()));
  in.seekg(0);
  in.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  if (!in) unreadable("it ended early or the disk failed");
  return bytes;
}

WholeFile create(const std::string& path) {
  return WholeFile(path, [](const std::string& name, const std::string& why) {
    raise(Page::tensor_file_not_written, {{"got", name}, {"why", why}});
  });
}

void put(WholeFile& file, std::span<const std::uint8_t> bytes) {
  file.write(bytes.data(), bytes.size());
}

}  // namespace

void Tensor::Free::operator()(std::uint8_t* p) const noexcept {
  ::operator delete[](p, std::align_val_t(64));
}

Tensor::Tensor(std::string name, DType dtype, std::vector<std::int64_t> shape)
    : name_(std::move(name)),
      dtype_(dtype),
      shape_(std::move(shape)),
      size_(dense_bytes(shape_, dtype).value()),
      data_(static_cast<std::uint8_t*>(::operator new[](size_, std::align_val_t(64)))) {
  std::fill_n(data_.get(), size_, std::uint8_t{0});
}

Tensor::Tensor(std::string name, DType dtype, std::vector<std::int64_t> shape,
               std::span<const std::uint8_t> bytes)
    : Tensor(std::move(name), dtype, std::move(shape)) {
  std::copy_n(bytes.data(), std::min(size_, bytes.size()), data_.get());
}

TensorView Tensor::view() const {
  return TensorView(data_.get(), dtype_, shape_);
}

Tensor parse_npy(std::span<const std::uint8_t> bytes, std::string_view file) {
  const std::string_view text = text_of(bytes);
  if (!text.starts_with("\x93NUMPY")) malformed(file, kNpy, "it does not begin with \\x93NUMPY");
  if (bytes.size() < 12) malformed(file, kNpy, fmt::format("it ends at byte {}", bytes.size()));
  const int version = bytes[6];
  if (version < 1 || version > 3) {
    malformed(file, kNpy, fmt::format("version {} of the format is unknown", version));
  }
  const std::size_t begin = version == 1 ? 10 : 12;
  std::size_t length = bytes[8] + std::size_t{256} * bytes[9];
  if (version > 1) length += (std::size_t{bytes[10]} << 16) + (std::size_t{bytes[11]} << 24);
  if (length > bytes.size() - begin) {
    malformed(file, kNpy,
              fmt::format("its header should end at byte {} of {}", begin + length, bytes.size()));
  }
  const NpyHeader header(text.substr(begin, length), file);
  if (*header.fortran_order) {
    malformed(file, kNpy, "it is in Fortran order (numpy.ascontiguousarray gives C order)");
  }
  const auto dtype = find_dtype(kNpyDTypes, *header.descr);
  if (!dtype) {
    wrong_dtype(file, "the array", "one of " + names_of(kNpyDTypes), printable(*header.descr));
  }
  const std::span<const std::uint8_t> data = bytes.subspan(begin + length);
  const auto need = dense_bytes(*header.shape, *dtype);
  if (!need || *need != data.size()) {
    malformed(
        file, kNpy,
        fmt::format("shape ({}) needs {} bytes of data, it has {}", fmt::join(*header.shape, ", "),
                    need ? std::to_string(*need) : "more than 2^63", data.size()));
  }
  return Tensor("", *dtype, *header.shape, data);
}

std::vector<Tensor> parse_safetensors(std::span<const std::uint8_t> bytes, std::string_view file) {
  if (bytes.size() < 8) {
    malformed(file, kSafetensors, fmt::format("it ends at byte {}", bytes.size()));
  }
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  if (length > bytes.size() - 8) {
    malformed(
        file, kSafetensors,
        fmt::format("its header should be {} bytes long, {} are left", length, bytes.size() - 8));
  }
  const Json header = parse_header(text_of(bytes).substr(8, length), file);
  if (!header.is_object()) malformed(file, kSafetensors, "its header is no JSON object");
  std::vector<Entry> entries;
  for (const auto& [name, value] : header.items()) {
    if (name != "__metadata__") entries.push_back(parse_entry(name, value, file));
  }
  std::ranges::sort(entries, {}, [](const Entry& e) { return std::pair(e.begin, e.end); });
  const std::span<const std::uint8_t> data = bytes.subspan(8 + length);
  std::uint64_t at = 0;
  std::vector<Tensor> tensors;
  for (const Entry& e : entries) {
    if (e.begin != at || e.end > data.size()) {
      malformed(file, kSafetensors,
                fmt::format("tensor {} lies at {} to {} of {} bytes of data, {}", printable(e.name),
                            e.begin, e.end, data.size(),
                            e.end > data.size() ? "beyond their end"
                            : e.begin < at      ? "over the one before it"
                                                : "with a hole before it"));
    }
    at = e.end;
    tensors.emplace_back(e.name, e.dtype, e.shape, data.subspan(e.begin, e.end - e.begin));
  }
  if (at != data.size()) {
    malformed(file, kSafetensors,
              fmt::format("{} bytes of data belong to no tensor", data.size() - at));
  }
  return tensors;
}

Tensor read_npy(const std::string& path) {
  return parse_npy(read_file(path), path);
}

std::vector<Tensor> read_safetensors(const std::string& path) {
  return parse_safetensors(read_file(path), path);
}

void write_npy(const std::string& path, const Tensor& tensor) {
  WholeFile file = create(path);
  file.write(npy_header(tensor));
  put(file, tensor.bytes());
  file.finish();
}

void write_safetensors(const std::string& path, std::span<const Tensor* const> tensors) {
  Json header = Json::object();
  std::size_t at = 0;
  for (const Tensor* t : tensors) {
    std::string_view dtype;
    for (const NamedDType& k : kSafetensorsDTypes) {
      if (k.dtype == t->dtype()) dtype = k.name;
    }
    header[t->name()] = {
        {"dtype", dtype}, {"shape", t->shape()}, {"data_offsets", {at, at + t->bytes().size()}}};
    at += t->bytes().size();
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = text.size();
  WholeFile file = create(path);
  file.write(&length, sizeof(length));
  file.write(text);
  for (const Tensor* t : tensors) put(file, t->bytes());
  file.finish();
}

}  // namespace serinus::cli
