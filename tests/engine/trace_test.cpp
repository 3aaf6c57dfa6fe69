// Trace readers: what they take, and what they say about what they cannot take.
#include "engine/trace/trace.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <unordered_map>
#include <unordered_set>

#include <serinus/error.h>

#include "engine/trace/generate.h"

namespace serinus::engine {
namespace {

std::vector<TraceRequest> read_text(std::string text, TraceOptions options = {}) {
  TraceReader reader("t", std::move(text), options);
  std::vector<TraceRequest> all;
  for (TraceRequest r; reader.next(r);) all.push_back(r);
  return all;
}

// The error that reading `text` gives; a test failure if it gives none.
std::string error_of(std::string text, TraceOptions options = {}) {
  try {
    read_text(std::move(text), options);
  } catch (const InputError& e) {
    return e.id() + " " + e.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

constexpr const char* kGood =
    R"({"timestamp": 7, "input_length": 600, "output_length": 3, "hash_ids": [4, 5]})";

TEST(Trace, ReadsMooncake) {
  const auto all = read_text(std::string(kGood) + "\n" + kGood);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[1].line, 2u);
  EXPECT_EQ(all[0].arrival_us, 7000);
  EXPECT_EQ(all[0].input_length, 600);
  EXPECT_EQ(all[0].output_length, 3);
  EXPECT_EQ(all[0].hash_ids, (std::vector<std::int64_t>{4, 5}));
  EXPECT_EQ(all[0].block_size, 512);
}

TEST(Trace, TakesAliasesAndUnknownFields) {
  const auto all = read_text(
      R"({"created_time":1.5,"input_tokens":512,"output_tokens":0,"hash_ids":[9],"x":{"y":[1,{"z":null}]}})");
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].arrival_us, 1500);
  EXPECT_EQ(all[0].output_length, 0);
}

TEST(Trace, ReadsQwen) {
  const auto all = read_text(
      R"({"chat_id": 159, "parent_chat_id": 55, "timestamp": 61.114, "input_length": 33, "output_length": 2, "type": "te\u0078t", "turn": 2, "hash_ids": [1, 2, 3]})"
      "\n"
      R"({"chat_id": 160, "timestamp": 62, "input_length": 33, "output_length": 2, "hash_ids": [1, 2]})"
      "\n"
      R"({"chat_id": 161, "timestamp": 62, "input_length": 33, "output_length": 2})");
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0].arrival_us, 61'114'000);
  EXPECT_EQ(all[0].chat_id, 159);
  EXPECT_EQ(all[0].parent_chat_id, 55);
  EXPECT_EQ(all[0].turn, 2);
  EXPECT_EQ(all[0].type, "text");
  EXPECT_EQ(all[0].block_size, 16);
  EXPECT_EQ(all[1].parent_chat_id, -1);
  EXPECT_EQ(all[1].hash_ids.size(), 2u);  // full blocks only
  EXPECT_EQ(all[2].block_size, 0);        // no prefix information
}

TEST(Trace, ReadsAzure) {
  const auto all = read_text(
      "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
      "2023-11-16 23:59:59.9799600,4808,10\r\n"
      "2023-11-17 00:00:00.0319600,3180,8\r\n"
      "2023-11-16T23:59:59Z,1,0\r\n");
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0].arrival_us, 0);
  EXPECT_EQ(all[1].arrival_us, 52'000);
  EXPECT_EQ(all[2].arrival_us, -979'960);
  EXPECT_EQ(all[1].input_length, 3180);
  EXPECT_TRUE(all[1].hash_ids.empty());
  EXPECT_EQ(all[1].block_size, 0);
}

// As spreadsheets and databases write it: cells in quotes, or the header left out.
TEST(Trace, ReadsAzureInQuotesAndWithoutHeader) {
  for (const std::string head : {"", "TIMESTAMP,ContextTokens,GeneratedTokens\n",
                                 "\"TIMESTAMP\",\"ContextTokens\",\"GeneratedTokens\"\r\n",
                                 "TIMESTAMP,\"ContextTokens\",GeneratedTokens\n"}) {
    SCOPED_TRACE(head);
    const auto all = read_text(head +
                               "\"2023-11-16 18:17:03.9799600\",\"4808\",\"10\"\n"
                               "2023-11-16 18:17:04,3180,\"8\"\n");
    ASSERT_EQ(all.size(), 2u);
    EXPECT_EQ(all[0].input_length, 4808);
    EXPECT_EQ(all[0].output_length, 10);
    EXPECT_EQ(all[1].arrival_us, 20'040);
    EXPECT_EQ(all[1].output_length, 8);
  }
  const std::string good = "2023-11-16 18:17:03,1,1\n";
  for (const std::string bad : {"\"2023-11-16 18:17:03,1,1", "\"2023-11-16 18:17:03\"x,1,1",
                                "2023-11-16 18:17:03,1,\"1", "2023-11-16 18:17:03,1,1\"",
                                "\"2023-11-16 18:17:03\",\"1\",\"1\",", "\"\"\"\",\"\",\"\""}) {
    EXPECT_TRUE(error_of(good + bad).starts_with("SRN4103 t:2: ")) << bad << error_of(good + bad);
    EXPECT_TRUE(error_of(bad).starts_with("SRN4102 ")) << bad;
  }
}

TEST(Trace, TakesBomCrlfBlankLinesAndNoLastNewline) {
  const auto all = read_text("\xef\xbb\xbf" + std::string(kGood) + "\r\n\r\n  \n" + kGood);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[1].line, 4u);
}

struct BadCase {
  const char* line;
  const char* message;
};

class TraceBadLine : public testing::TestWithParam<BadCase> {};

TEST_P(TraceBadLine, NamesFileLineFieldAndValue) {
  const std::string text = std::string(kGood) + "\n" + GetParam().line + "\n" + kGood + "\n";
  EXPECT_EQ(error_of(text), std::string("SRN4103 t:2: ") + GetParam().message);
  TraceReader reader("t", text, {.skip_bad = true});
  TraceRequest r;
  EXPECT_TRUE(reader.next(r));
  EXPECT_TRUE(reader.next(r));
  EXPECT_EQ(r.line, 3u);
  EXPECT_FALSE(reader.next(r));
  EXPECT_EQ(reader.skipped(), 1u);
  EXPECT_EQ(reader.first_skipped(), std::string("t:2: ") + GetParam().message);
}

#define LINE(t, i, o, h) \
  "{\"timestamp\": " t ", \"input_length\": " i ", \"output_length\": " o ", \"hash_ids\": " h "}"
#define LENGTH "must be a whole number from 1 to 1073741824, got "
INSTANTIATE_TEST_SUITE_P(
    Lines, TraceBadLine,
    testing::Values(
        BadCase{LINE("0", "-1", "1", "[1]"), "input_length " LENGTH "`-1`"},
        BadCase{LINE("0", "0", "1", "[]"), "input_length " LENGTH "`0`"},
        BadCase{LINE("0", "1.0", "1", "[1]"), "input_length " LENGTH "`1.0`"},
        BadCase{LINE("0", "1e2", "1", "[1]"), "input_length " LENGTH "`1e2`"},
        BadCase{
            LINE("0", "1e999", "1", "[1]"),
            "input_length is a number out of range (byte 33), got `1e999, \"output_length\": 1, "
            "\"hash_ids\": [1]}`"},
        BadCase{LINE("0", "99999999999999999999", "1", "[1]"),
                "input_length " LENGTH "`99999999999999999999`"},
        BadCase{LINE("0", "\"7\"", "1", "[1]"), "input_length " LENGTH "`\"7\"`"},
        BadCase{LINE("0", "NaN", "1", "[1]"),
                "input_length is no JSON value (byte 33), got `NaN, \"output_length\": 1, "
                "\"hash_ids\": [1]}`"},
        BadCase{LINE("-1", "1", "1", "[1]"),
                "timestamp must be a time that is not negative, got `-1`"},
        BadCase{LINE("1e300", "1", "1", "[1]"),
                "timestamp must be a time that is not negative, got `1e300`"},
        BadCase{LINE("null", "1", "1", "[1]"),
                "timestamp must be a time that is not negative, got `null`"},
        BadCase{LINE("0", "1", "-5", "[1]"),
                "output_length must be a whole number from 0 to 1073741824, got `-5`"},
        BadCase{LINE("0", "513", "1", "[1]"),
                "hash_ids must have 2 ids, one a block of 512 tokens of input_length 513, got `1 "
                "ids`"},
        BadCase{LINE("0", "513", "1", "[1, 2, 3]"),
                "hash_ids must have 2 ids, one a block of 512 tokens of input_length 513, got `3 "
                "ids`"},
        BadCase{LINE("0", "1", "1", "[-1]"),
                "hash_ids must be a whole number from 0 to 9223372036854775807, got `-1`"},
        BadCase{LINE("0", "1", "1", "7"), "hash_ids should be an array (byte 68), got `7}`"},
        BadCase{R"({"timestamp": 0, "output_length": 1, "hash_ids": []})",
                "input_length is missing, got `{\"timestamp\": 0, \"output_length\": 1, "
                "\"hash_ids\": []}`"},
        BadCase{R"({"timestamp": 0, "input_length": 1, "input_tokens": 2})",
                "input_tokens stands twice (an alias counts), got `2`"},
        BadCase{R"({"timestamp": 0, "input_le)",
                R"(line ends within a string (byte 26), got `{"timestamp": 0, "input_le`)"},
        BadCase{R"({"timestamp": 0, "input_length": 1, "x": )"
                "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
                "x is nested too deeply (byte 73), got `[[[[[[[[[[[[[[[[[[[[[[`"},
        BadCase{"[1]", "line should be an object (byte 0), got `[1]`"},
        BadCase{"garbage", "line should be an object (byte 0), got `garbage`"},
        BadCase{"{} {}", "line goes on after its end (byte 3), got `{}`"},
        BadCase{"\xff\xfe\x01",
                "line is not UTF-8: is this a binary file?, got `\\xff\\xfe\\x01`"}));

TEST(Trace, NamesNulBytesAndLongLines) {
  using namespace std::string_literals;
  EXPECT_EQ(error_of(kGood + "\n{\0\0}\n"s),
            "SRN4103 t:2: line holds NUL bytes: is this a binary file?, got `{\\x00\\x00}`");
  const std::string huge(9 << 20, 'x');
  const std::string message = error_of(kGood + "\n"s + huge + "\n" + kGood);
  EXPECT_TRUE(message.starts_with("SRN4103 t:2: line is longer than 4 MiB, got `xxx"));
  EXPECT_LT(message.size(), 200u);
  EXPECT_EQ(read_text(kGood + "\n"s + huge + "\n" + kGood + "\n", {.skip_bad = true}).size(), 2u);
  EXPECT_EQ(read_text(kGood + "\n"s + huge, {.skip_bad = true}).size(), 1u);
}

// A line without an end is refused before all of it is read.
TEST(Trace, ALineWithoutEndIsRefusedAtOnce) {
  const std::string endless = "/dev/zero";
  if (!std::filesystem::exists(endless)) GTEST_SKIP() << endless << " is not here";
  try {
    read_trace(endless, {.format = TraceFormat::mooncake});
    ADD_FAILURE() << "no error";
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find("line is longer than 4 MiB"), std::string::npos);
  }
}

TEST(Trace, ABadFirstLineIsPassedOverToo) {
  const std::string text = "garbage\n\xff\n" + std::string(kGood) + "\n";
  EXPECT_EQ(read_text(text, {.skip_bad = true}).size(), 1u);
  TraceReader reader("t", text, {.skip_bad = true});
  TraceRequest r;
  EXPECT_TRUE(reader.next(r));
  EXPECT_EQ(r.line, 3u);
  EXPECT_EQ(reader.skipped(), 2u);
  EXPECT_EQ(reader.first_skipped(), "t:1: line is of no known trace format, got `garbage`");
  EXPECT_EQ(error_of("garbage\nmore\n", {.skip_bad = true}),
            "SRN4102 t is no known trace format: its first line is `garbage`");
}

TEST(Trace, NamesBadCsvCells) {
  const std::string head = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
  const std::string zone = "TIMESTAMP must read as YYYY-MM-DD HH:MM:SS.fraction, in UTC, got ";
  EXPECT_EQ(error_of(head + "2023-13-16 18:17:03,1,1"),
            "SRN4103 t:2: " + zone + "`2023-13-16 18:17:03`");
  EXPECT_EQ(error_of(head + "2023-11-16 18:17:03+02:00,1,1"),
            "SRN4103 t:2: " + zone + "`2023-11-16 18:17:03+02:00`");
  EXPECT_EQ(error_of(head + "2023-11-16 18:17:03,-4,1"),
            "SRN4103 t:2: ContextTokens " LENGTH "`-4`");
  EXPECT_EQ(error_of(head + "2023-11-16 18:17:03,4,"),
            "SRN4103 t:2: GeneratedTokens must be a whole number from 0 to 1073741824, got ``");
  EXPECT_EQ(error_of(head + "2023-11-16 18:17:03,4"),
            "SRN4103 t:2: line must have three cells: TIMESTAMP, ContextTokens, GeneratedTokens, "
            "got `2023-11-16 18:17:03,4`");
  EXPECT_TRUE(error_of(head + "2023-11-16 18:17:03,4,5,6").starts_with("SRN4103 t:2: line must"));
}

TEST(Trace, NamesFilesThatAreNoTrace) {
  EXPECT_EQ(error_of(""), "SRN4104 t holds no request (0 malformed lines were passed over)");
  EXPECT_EQ(error_of("\n \n"), "SRN4104 t holds no request (0 malformed lines were passed over)");
  EXPECT_EQ(error_of("TIMESTAMP,ContextTokens,GeneratedTokens\n"),
            "SRN4104 t holds no request (0 malformed lines were passed over)");
  EXPECT_EQ(error_of("{]\n{]\n", {.skip_bad = true}),
            "SRN4104 t holds no request (2 malformed lines were passed over)");
  EXPECT_EQ(error_of("<html>"), "SRN4102 t is no known trace format: its first line is `<html>`");
  const auto file_error = [](const std::string& path) {
    try {
      read_trace(path);
    } catch (const InputError& e) {
      return e.id() + " " + e.what();
    }
    return std::string("no error");
  };
  EXPECT_EQ(file_error("/no/such/file"),
            "SRN4101 cannot read /no/such/file: No such file or directory");
  EXPECT_EQ(file_error("/"), "SRN4101 cannot read /: it is a directory");
  EXPECT_EQ(file_error(std::string("/dev/null\0.csv", 14)),
            "SRN4101 cannot read /dev/null\\x00.csv: the path holds a NUL");
  const std::string gz = testing::TempDir() + "trace_test.jsonl.gz";
  std::ofstream(gz, std::ios::binary) << "\x1f\x8b\x08 and so on";
  EXPECT_EQ(file_error(gz), "SRN4101 cannot read " + gz + ": it is compressed; unpack it first");
  const std::string loop = testing::TempDir() + "trace_test_loop";
  std::filesystem::remove(loop);
  std::filesystem::create_symlink(loop, loop);
  EXPECT_TRUE(file_error(loop).starts_with("SRN4101 cannot read " + loop));
  std::filesystem::remove(loop);
  std::filesystem::remove(gz);
}

TEST(Trace, TakesAFormatThatIsGiven) {
  EXPECT_EQ(error_of("2023-11-16 18:17:03,4,x\n", {.format = TraceFormat::azure}).substr(0, 12),
            "SRN4103 t:1:");
  EXPECT_EQ(read_text("2023-11-16 18:17:03,4,5\n", {.format = TraceFormat::azure}).size(), 1u);
}

struct Statistics {
  double mean_input = 0, mean_output = 0, hit_share = 0, shared_first_block = 0;
};

Statistics statistics_of(const std::vector<TraceRequest>& all) {
  Statistics s;
  double blocks = 0, hits = 0;
  std::unordered_set<std::int64_t> seen;
  for (const TraceRequest& r : all) {
    s.mean_input += static_cast<double>(r.input_length) / static_cast<double>(all.size());
    s.mean_output += static_cast<double>(r.output_length) / static_cast<double>(all.size());
    s.shared_first_block += r.hash_ids[0] == 0 ? 1.0 / static_cast<double>(all.size()) : 0;
    for (const std::int64_t id : r.hash_ids) hits += seen.insert(id).second ? 0 : 1;
    blocks += static_cast<double>(r.hash_ids.size());
  }
  s.hit_share = hits / blocks;
  return s;
}

// The conversation trace: mean input 12 035, mean output 342.6, 36.64 % of the blocks hit.
TEST(TraceGenerator, HasTheStatisticsOfAConversationTrace) {
  std::ostringstream out;
  generate_trace({.requests = 12'031, .seed = 3}, out);
  TraceReader reader("generated", out.str());
  std::vector<TraceRequest> all;
  for (TraceRequest r; reader.next(r);) all.push_back(r);
  EXPECT_EQ(all.size(), 12'031u);
  const Statistics s = statistics_of(all);
  EXPECT_NEAR(s.mean_input, 12'035, 1200);
  EXPECT_NEAR(s.mean_output, 342.6, 20);
  EXPECT_NEAR(s.hit_share, 0.366, 0.03);
  EXPECT_GT(s.shared_first_block, 0.999);
  EXPECT_NEAR(static_cast<double>(all.back().arrival_us), 3537e6, 200e6);
}

TEST(TraceGenerator, ADifferentSeedGivesAnotherTrace) {
  std::ostringstream a, b, c;
  generate_trace({.requests = 20, .seed = 1}, a);
  generate_trace({.requests = 20, .seed = 1}, b);
  generate_trace({.requests = 20, .seed = 2}, c);
  EXPECT_EQ(a.str(), b.str());
  EXPECT_NE(a.str(), c.str());
}

// engine/traces/demo.jsonl is `serinus trace-gen` with its defaults.
TEST(TraceGenerator, MakesTheShippedDemoTrace) {
  const std::string path = SERINUS_SOURCE_DIR "/engine/traces/demo.jsonl";
  std::ifstream file(path, std::ios::binary);
  const std::string shipped{std::istreambuf_iterator<char>(file), {}};
  std::ostringstream out;
  generate_trace({}, out);
  EXPECT_EQ(shipped, out.str());
  EXPECT_LE(shipped.size(), 200'000u);
  const Statistics s = statistics_of(read_trace(path));
  EXPECT_NEAR(s.hit_share, 0.366, 0.06);
}

// The public traces, where the checkout lies beside them.
std::string public_trace(const std::string& name) {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): nothing sets the environment
  const char* dir = std::getenv("SERINUS_TRACES");
  return (dir != nullptr ? std::string(dir) : std::string(SERINUS_SOURCE_DIR "/../shared/traces")) +
         "/" + name;
}

TEST(Trace, GoldenNumbersOfTheConversationTrace) {
  const std::string path = public_trace("mooncake/conversation_trace.jsonl");
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not here";
  const auto all = read_trace(path);
  ASSERT_EQ(all.size(), 12'031u);
  std::int64_t input = 0, output = 0, references = 0, hits = 0, partial_hits = 0, partial = 0;
  std::unordered_set<std::int64_t> seen;
  std::unordered_map<std::int64_t, std::int64_t> predecessor;
  for (const TraceRequest& r : all) {
    input += r.input_length;
    output += r.output_length;
    references += static_cast<std::int64_t>(r.hash_ids.size());
    partial += r.input_length % 512 != 0 ? 1 : 0;
    for (std::size_t i = 0; i < r.hash_ids.size(); ++i) {
      const std::int64_t before = i == 0 ? -1 : r.hash_ids[i - 1];
      EXPECT_EQ(predecessor.try_emplace(r.hash_ids[i], before).first->second, before);
      if (seen.insert(r.hash_ids[i]).second) continue;
      ++hits;
      const bool is_partial = static_cast<std::int64_t>(i + 1) * 512 > r.input_length;
      partial_hits += is_partial ? 1 : 0;
    }
  }
  EXPECT_EQ(input, 144'793'823);
  EXPECT_EQ(output, 4'122'048);
  EXPECT_EQ(references, 288'500);
  EXPECT_EQ(seen.size(), 182'790u);
  EXPECT_EQ(hits, 105'710);
  EXPECT_EQ(partial_hits, 118);
  EXPECT_EQ(partial, 12'009);
  EXPECT_EQ(all.back().arrival_us - all.front().arrival_us, 3'536'999'000);
}

TEST(Trace, ReadsThePublicAzureTrace) {
  const std::string path = public_trace("azure-llm-2023/AzureLLMInferenceTrace_code.csv");
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not here";
  const auto all = read_trace(path);
  EXPECT_EQ(all.size(), 8'819u);
  EXPECT_EQ(all[0].input_length, 4808);
  EXPECT_EQ(all[1].arrival_us, 52'000);
}

}  // namespace
}  // namespace serinus::engine
