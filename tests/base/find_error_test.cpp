// find_error: ids, slugs and pasted error lines, and what must find nothing.
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include <serinus/error.h>

#include "base/error_page.h"

namespace serinus {
namespace {

// The slug that a text finds, "" for none.
std::string found(std::string_view text) {
  const ErrorEntry* e = find_error(text);
  return e == nullptr ? "" : std::string(e->slug);
}

TEST(FindError, ByIdAndSlugInAnyCase) {
  EXPECT_EQ(found("SRN1001"), "not-contiguous");
  EXPECT_EQ(found(" srn1001\n"), "not-contiguous");
  EXPECT_EQ(found("Not-Contiguous"), "not-contiguous");
  EXPECT_EQ(found("kv_must_be_contiguous"), "kv-must-be-contiguous");
  EXPECT_EQ(found("1001"), "not-contiguous");
  EXPECT_EQ(found("SRN0000"), "");
  EXPECT_EQ(found("0000"), "");
  EXPECT_EQ(found("100"), "");
  EXPECT_EQ(found("10011"), "");
  EXPECT_EQ(found("SRN10011"), "");
}

TEST(FindError, ByTitle) {
  for (const ErrorEntry& e : error_reference()) EXPECT_EQ(found(std::string(e.title)), e.slug);
}

TEST(FindError, TheMostSpecificMessageWins) {
  EXPECT_EQ(found("kv must be contiguous"), "kv-must-be-contiguous");
  EXPECT_EQ(found("out must be contiguous"), "not-contiguous");
  EXPECT_EQ(found("kv-canary: canary_buf must be contiguous"), "canary-tensor-must-be-contiguous");
  EXPECT_EQ(found("kv-canary: real_kv_sources[0].tensor must be contiguous"),
            "canary-tensor-must-be-contiguous");
  EXPECT_EQ(found("my_kv must be contiguous"), "not-contiguous");
  EXPECT_EQ(found("out must have shape (4, 64, 512), got (4, 64, 576)"), "wrong-shape");
  EXPECT_EQ(found("kv d_qk must match q d_qk=576, got 512"), "size-mismatch");
  // The name of a call and its argument, where a name stands.
  EXPECT_EQ(found("TypeError: kv-canary: scatter_req_token_ids flat_in must be int64, got int32"),
            "canary-scatter-dtype");
  EXPECT_EQ(found("kv-canary: scatter_req_token_ids pool_out must be 2-D, got shape (4,)"),
            "canary-not-2d");
  EXPECT_EQ(found("[rank0] kv-canary: scatter_req_token_ids offsets must be 1-D, got shape (4, 2)"),
            "canary-not-1d");
}

TEST(FindError, WhateverStandsBeforeIt) {
  const std::string want = "kv-must-be-contiguous";
  for (const char* text : {
           "ValueError: kv must be contiguous",
           "serinus.Error: kv must be contiguous",
           "serinus.ValueError: kv must be contiguous\n",
           "error SRN2000: kv must be contiguous\n  more: serinus explain SRN2000\n",
           "  \t kv must be contiguous \r\n\r\n",
           "[2026-11-30 12:00:01 TP3] ERROR scheduler.py:88 ValueError: kv must be contiguous",
           "E       ValueError: kv must be contiguous",
           "{\"level\": \"error\", \"message\": \"kv must be contiguous\", \"rank\": 3}",
           "raise ValueError('kv must be contiguous')",
           R"(Traceback (most recent call last):
  File "a.py", line 3, in <module>
    f(q, kv)
ValueError: kv must be contiguous)",
           "ValueError: kv must be\n contiguous",
       }) {
    EXPECT_EQ(found(text), want) << text;
  }
}

TEST(FindError, AnIdInTheTextDecides) {
  EXPECT_EQ(found("see SRN1001, kv must be contiguous"), "not-contiguous");
  EXPECT_EQ(found("(SRN0001) kv must be contiguous"), "kv-must-be-contiguous");
  EXPECT_EQ(found("XSRN1001"), "");
}

TEST(FindError, OtherTextFindsNothing) {
  for (const char* text :
       {"", " ", "\n", "hello", "must be contiguous", "kv", "contiguous",
        "kv must be contiguous memory, they say", "kv must be contiguously",
        "Segmentation fault (core dumped)", "ValueError: ", "{name}", "---", "%s%n", "\xff\xfe"}) {
    EXPECT_EQ(found(text), "") << text;
  }
  EXPECT_EQ(found(std::string_view("\0\0", 2)), "");
}

// What violations.jsonl and a violations sink hold.
TEST(FindError, JsonLinesOfViolations) {
  EXPECT_EQ(found(R"({"reasons":["kv_bytes"],"moment":"head","slot":5})"), "violation-kv-bytes");
  EXPECT_EQ(found(R"({"reasons":["token","chain"],"moment":"head","slot":5})"), "canary-violation");
  EXPECT_EQ(found(R"({"reasons":)"), "");
  EXPECT_EQ(found(R"({"reasons":[)"), "");
}

TEST(FindError, HugeAndHostileTextIsQuick) {
  // What would make a backtracking matcher explode, and plain size.
  std::string repeated;
  for (int i = 0; i < 200'000; ++i) repeated += "must have shape , got ";
  std::string lines;
  for (int i = 0; i < 100'000; ++i) lines += "x must be\n";
  std::string braces(1'000'000, '{');
  std::string binary(3'000'000, '\xa5');
  const auto start = std::chrono::steady_clock::now();
  for (const std::string* s : {&repeated, &lines, &braces, &binary}) found(*s);
  EXPECT_EQ(found(binary + "\nValueError: kv must be contiguous"), "kv-must-be-contiguous");
  // A guard against exponential time, not a measurement.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::minutes(1));
}

TEST(MessageTemplate, PlaceholdersAreWildcards) {
  const MessageTemplate t("{name} must be {want}, got {got}");
  EXPECT_TRUE(t.matches("x must be int32, got int64"));
  EXPECT_TRUE(t.matches("x must be , got "));
  EXPECT_TRUE(t.matches("x must be a, got b, got c"));
  EXPECT_FALSE(t.matches(" must be a, got b"));  // a name is one word, and there is none
  EXPECT_FALSE(t.matches("x must be a got b"));
  const MessageTemplate two("{got} and {got} differ");
  EXPECT_TRUE(two.matches("the first one and the second one differ"));
  EXPECT_FALSE(two.matches("the first one and the second one differed"));
  EXPECT_EQ(two.literal_size(), 9u);
}

}  // namespace
}  // namespace serinus
