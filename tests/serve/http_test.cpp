// What a request says: read strictly, or refused with the right number.
#include "serve/http.h"

#include <gtest/gtest.h>

#include <string>

namespace serinus::serve {
namespace {

Head read(const std::string& text) {
  Head head;
  const auto refusal = parse_head(text, head);
  EXPECT_FALSE(refusal) << text << refusal->why;
  return head;
}

int refused(const std::string& text) {
  Head head;
  const auto refusal = parse_head(text, head);
  return refusal ? refusal->status : 0;
}

const std::string kHost = "Host: 127.0.0.1:7767\r\n";

TEST(Head, OfABrowser) {
  const Head h = read(
      "GET /api/violations?since=3 HTTP/1.1\r\nhost: localhost:7767\r\nConnection: keep-alive\r\n"
      "ACCEPT:\ttext/html, */* \r\nAuthorization: Bearer abc\r\nRange: bytes=0-\r\n\r\n");
  EXPECT_EQ(h.method, "GET");
  EXPECT_EQ(h.target, "/api/violations?since=3");
  EXPECT_EQ(h.host, "localhost:7767");
  EXPECT_EQ(h.accept, "text/html, */*");
  EXPECT_EQ(h.authorization, "Bearer abc");
  EXPECT_TRUE(h.keep_alive);
  EXPECT_FALSE(h.has_body);
}

TEST(Head, WhetherTheConnectionGoesOn) {
  EXPECT_FALSE(read("GET / HTTP/1.1\r\n" + kHost + "Connection: x, CLOSE\r\n\r\n").keep_alive);
  EXPECT_FALSE(read("GET / HTTP/1.0\r\n\r\n").keep_alive);
  EXPECT_TRUE(read("POST / HTTP/1.1\r\n" + kHost + "Content-Length: 3\r\n\r\n").has_body);
  EXPECT_FALSE(read("GET / HTTP/1.1\r\n" + kHost + "Content-Length: 0\r\n\r\n").has_body);
  EXPECT_TRUE(read("POST / HTTP/1.1\r\n" + kHost + "Transfer-Encoding: chunked\r\n\r\n").has_body);
}

TEST(Head, WhatIsRefused) {
  EXPECT_EQ(refused(""), 400);
  EXPECT_EQ(refused("GET / HTTP/1.1\r\n"), 400);  // does not end
  EXPECT_EQ(refused("GET / HTTP/1.1\r\n\r\n"), 400) << "no Host";
  EXPECT_EQ(refused("GET /\r\n" + kHost + "\r\n"), 400);
  EXPECT_EQ(refused("G(T / HTTP/1.1\r\n" + kHost + "\r\n"), 400);
  EXPECT_EQ(refused("GET / x HTTP/1.1\r\n" + kHost + "\r\n"), 400);
  EXPECT_EQ(refused("GET /\xc3\xa9 HTTP/1.1\r\n" + kHost + "\r\n"), 400);
  EXPECT_EQ(refused("GET / HTTP/2.0\r\n" + kHost + "\r\n"), 505);
  EXPECT_EQ(refused("GET / HTTP/1.1\n" + kHost + "\r\n"), 400) << "a bare line feed";
  EXPECT_EQ(refused("GET / HTTP/1.1\r\n" + kHost + kHost + "\r\n"), 400);
  EXPECT_EQ(refused("GET / HTTP/1.1\r\n" + kHost + "Host : x\r\n\r\n"), 400);
  EXPECT_EQ(refused("GET / HTTP/1.1\r\n" + kHost + " folded: x\r\n\r\n"), 400);
  EXPECT_EQ(refused("GET / HTTP/1.1\r\n" + kHost + std::string("X: a\0b\r\n\r\n", 10)), 400);
  EXPECT_EQ(refused("GET / HTTP/1.1\r\n" + kHost + "\r\nmore"), 400);
  const std::string auth = "Authorization: Bearer a\r\n";
  EXPECT_EQ(refused("GET / HTTP/1.1\r\n" + kHost + auth + auth + "\r\n"), 400);
  const std::string length = "Content-Length: 5\r\n";
  EXPECT_EQ(refused("GET / HTTP/1.1\r\n" + kHost + length + length + "\r\n"), 400);
  EXPECT_EQ(refused("GET / HTTP/1.1\r\n" + kHost + "Content-Length: +5\r\n\r\n"), 400);
  EXPECT_EQ(refused("GET / HTTP/1.1\r\n" + kHost + length + "Transfer-Encoding: x\r\n\r\n"), 400);
}

TEST(Head, WhatIsTooLarge) {
  EXPECT_EQ(refused("GET / HTTP/1.1\r\n" + kHost + "Content-Length: 65536\r\n\r\n"), 0);
  EXPECT_EQ(refused("GET / HTTP/1.1\r\n" + kHost + "Content-Length: 65537\r\n\r\n"), 413);
  EXPECT_EQ(
      refused("GET / HTTP/1.1\r\n" + kHost + "Content-Length: 99999999999999999999999999\r\n\r\n"),
      413);
  EXPECT_EQ(refused("GET /" + std::string(kMaxTarget, 'a') + " HTTP/1.1\r\n" + kHost + "\r\n"),
            414);
  EXPECT_EQ(refused("GET / HTTP/1.1\r\n" + kHost + "X: " + std::string(kMaxHead, 'a') + "\r\n\r\n"),
            431);
  std::string many = "GET / HTTP/1.1\r\n" + kHost;
  for (std::size_t i = 1; i < kMaxHeaders; ++i) many += "X: a\r\n";
  EXPECT_EQ(refused(many + "\r\n"), 0);
  EXPECT_EQ(refused(many + "X: a\r\n\r\n"), 431);
}

TEST(Target, ApartAndDecoded) {
  const auto t = parse_target("/a%2fb/%C3%A9?since=%31+2&x&=y&since=9#fragment");
  ASSERT_TRUE(t);
  EXPECT_EQ(t->path, "/a/b/\xc3\xa9");
  ASSERT_NE(t->find("since"), nullptr);
  EXPECT_EQ(*t->find("since"), "1 2");
  EXPECT_EQ(*t->find("x"), "");
  EXPECT_EQ(t->find("y"), nullptr);
  EXPECT_EQ(parse_target("/+")->path, "/+");
  EXPECT_TRUE(parse_target("/?")->query.empty());
}

TEST(Target, WhatIsNone) {
  for (const char* text :
       {"", "x", "*", "http://host/", "/%", "/%1", "/%1g", "/%00", "/?a=%0a", "/%7f", "/?%"}) {
    EXPECT_FALSE(parse_target(text)) << text;
  }
}

TEST(Number, DigitsAloneWithinTheRange) {
  EXPECT_EQ(parse_number("0", 10), 0u);
  EXPECT_EQ(parse_number("10", 10), 10u);
  EXPECT_EQ(parse_number("18446744073709551615", ~0ull), ~0ull);
  for (const char* text :
       {"", "11", "-1", "+1", " 1", "1 ", "1e0", "0x1", "18446744073709551616"}) {
    EXPECT_FALSE(parse_number(text, 10)) << text;
  }
}

TEST(Secret, IsTheSameOrNot) {
  EXPECT_TRUE(same_secret("abc", "abc"));
  for (const char* text : {"", "ab", "abd", "bbc", "abcabc", "abca"}) {
    EXPECT_FALSE(same_secret(text, "abc")) << text;
  }
  EXPECT_FALSE(same_secret("", ""));
  EXPECT_FALSE(same_secret("a", ""));
}

TEST(Host, OfThisMachine) {
  for (const char* host : {"127.0.0.1", "127.0.0.1:7767", "127.1.2.3", "localhost", "LocalHost:1",
                           "[::1]", "[::1]:7767"}) {
    EXPECT_TRUE(is_loopback_host(host)) << host;
  }
  for (const char* host : {"",
                           ":",
                           ":80",
                           "evil.example",
                           "127.0.0.1.evil.example",
                           "localhost.evil.example",
                           "127.0.0.1:x",
                           "127.0.0.1:65536",
                           "127.0.0.1:",
                           "128.0.0.1",
                           "127.1",
                           "127.0.0.0.1",
                           "127.0.0.1.",
                           "127.0.0.256",
                           "::1",
                           "[::1",
                           "[::2]",
                           "0.0.0.0",
                           "localhost:80:80",
                           "127.0.0.1@evil.example"}) {
    EXPECT_FALSE(is_loopback_host(host)) << host;
  }
}

}  // namespace
}  // namespace serinus::serve
