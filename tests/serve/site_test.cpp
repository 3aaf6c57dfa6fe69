// Every route, and every way to be refused, without a socket.
#include "serve/site.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>

#include <serinus/error.h>
#include <serinus/metrics.h>

#include "rig.h"
#include "serve/error_json.h"
#include "serve/page.h"

namespace serinus::serve {
namespace {

using canary::testing::Rig;

Head get(std::string target) {
  Head h;
  h.method = "GET";
  h.target = std::move(target);
  h.host = "127.0.0.1:7767";
  return h;
}

/// A small engine that found a flipped byte, and its site.
struct Watched {
  Watched() : feed("a <test> & more"), site({true, ""}, &feed) {
    rig.alloc(1, {4, 5, 6, 7, 8});
    rig.run(1, 0, {4, 5, 6, 7});
    *rig.bytes.byte(5, 0, 3) ^= 1;
    rig.look(1, 4);
    for (canary::Violation& v : rig.monitor.poll()) feed.add(std::move(v), "kv", "a note");
    rig.bytes.spec.name = "second \"pool\"";
    rig.monitor.add_pool(rig.bytes.spec);
    feed.end(rig.monitor);
  }
  Response ask(const std::string& target) const { return site.answer(get(target)); }
  Json json(const std::string& target) const {
    const Response r = ask(target);
    EXPECT_EQ(r.status, 200) << target << r.body;
    EXPECT_EQ(r.type, "application/json");
    return Json::parse(r.body);
  }
  /// Asked while the engine looks on.
  Response ask_slot(const std::string& target) {
    Response r;
    bool done = false;
    std::mutex mutex;
    std::thread asker([&] {
      Response answer = ask(target);
      const std::lock_guard lock(mutex);
      r = std::move(answer);
      done = true;
    });
    for (;;) {
      feed.look(rig.monitor);
      const std::lock_guard lock(mutex);
      if (done) break;
    }
    asker.join();
    return r;
  }

  Rig rig;
  Feed feed;
  Site site;
};

int status_of(const Response& r) {
  if (r.status != 200) {
    const Json j = Json::parse(r.body);
    EXPECT_EQ(j["error"]["status"], r.status);
    EXPECT_EQ(j["error"]["id"], "SRN6023");
    EXPECT_EQ(find_error(j["error"]["message"].get<std::string>())->slug, "http-request-refused");
  }
  return r.status;
}

TEST(Site, Health) {
  const Watched w;
  const Json j = w.json("/healthz");
  EXPECT_EQ(j["status"], "ok");
  EXPECT_EQ(j["engine"], "ended");
  EXPECT_EQ(j["step"], 2);
  const Site alone({true, ""}, nullptr);
  EXPECT_EQ(Json::parse(alone.answer(get("/healthz")).body)["engine"], "none");
}

TEST(Site, MetricsAreThoseOfTheLibrary) {
  const Watched w;
  const Response r = w.ask("/metrics");
  EXPECT_EQ(r.type, canary::kMetricsType);
  const auto sample = canary::metrics_sample(w.rig.monitor);
  EXPECT_EQ(r.body, canary::metrics_text({&sample, 1}));
  EXPECT_NE(r.body.find("serinus_steps_total 2"), std::string::npos);
  const Site alone({true, ""}, nullptr);
  EXPECT_EQ(alone.answer(get("/metrics")).body, canary::metrics_text({}));
}

TEST(Site, AViolationThatIsListedAgainIsOneOnTheMap) {
  Watched w;
  const auto found = w.json("/api/violations")["violations"][0];
  canary::Violation again;
  again.slot = found["slot"];
  again.first_step = found["first_step"];
  w.feed.add(again, "kv", "");
  again.first_step += 1;  // another fault
  w.feed.add(again, "kv", "");
  EXPECT_EQ(w.json("/api/violations")["violations"].size(), 3u);
  const Json pool = w.json("/api/pools/0");
  const auto cell = static_cast<std::size_t>(again.slot / pool["map"]["slots_per_cell"].get<int>());
  EXPECT_EQ(pool["map"]["violations"][cell], 2);
  const Response r = w.ask("/api/pools/7");
  EXPECT_EQ(status_of(r), 404);
  EXPECT_NE(r.body.find("the pools are 0 to 1"), std::string::npos) << r.body;
}

TEST(Site, Violations) {
  const Watched w;
  const Json all = w.json("/api/violations");
  ASSERT_EQ(all["violations"].size(), 1u);
  const Json& v = all["violations"][0];
  EXPECT_EQ(v["number"], 1);
  EXPECT_EQ(v["note"], "a note");
  EXPECT_EQ(v["reasons"], Json({"kv_bytes"}));
  EXPECT_EQ(v["pages"], Json({"violation-kv-bytes"}));
  EXPECT_EQ(v["slot"], 5);
  EXPECT_EQ(v["pool"], "kv");
  EXPECT_EQ(v["pool_number"], 0);
  EXPECT_TRUE(v["text"].get<std::string>().starts_with("kv-canary violation: reasons=kv_bytes"));
  EXPECT_EQ(all["last"], 1);
  EXPECT_EQ(w.json("/api/violations?since=0")["violations"].size(), 1u);
  EXPECT_EQ(w.json("/api/violations?since=1")["violations"].size(), 0u);
  EXPECT_EQ(w.json("/api/violations?limit=0&since=0")["violations"].size(), 0u);
  for (const char* query : {"since=-1", "since=x", "since=", "limit=1001", "limit=all",
                            "limit=%31x", "since=18446744073709551616"}) {
    EXPECT_EQ(status_of(w.ask(std::string("/api/violations?") + query)), 400) << query;
  }
}

TEST(Site, Pools) {
  const Watched w;
  const Json all = w.json("/api/pools");
  ASSERT_EQ(all["pools"].size(), 2u);
  const Json& p = all["pools"][0];
  EXPECT_EQ(p["name"], "kv");
  EXPECT_EQ(p["slots"], 32);
  EXPECT_EQ(p["protected"], 5);
  EXPECT_EQ(p["counts"], Json::parse(R"({"free":27,"empty":1,"written":4,"cached":0})"));
  EXPECT_EQ(p["violations"]["kv_bytes"], 1);
  EXPECT_EQ(p["violations"]["token"], 0);
  EXPECT_EQ(p["map"]["cells"], 32);
  EXPECT_EQ(p["map"]["written"][4], 1);
  EXPECT_EQ(p["map"]["empty"][8], 1);
  EXPECT_EQ(p["map"]["violations"][5], 1);
  EXPECT_EQ(p["map"]["violations"][4], 0);
  EXPECT_EQ(all["pools"][1]["name"], "second \"pool\"");
  EXPECT_EQ(w.json("/api/pools/0"), p);
  for (const char* path : {"2", "-1", "x", "00000000000000000000", "0/", "0/slots", "0/slots/",
                           "0/slots/32", "0/slots/-1", "0/slots/1/", "0/slots/1.5", "0//slots/1"}) {
    const int status = status_of(w.ask(std::string("/api/pools/") + path));
    EXPECT_EQ(status, std::string(path) == "00000000000000000000" ? 200 : 404) << path;
  }
}

TEST(Site, Slot) {
  Watched w;
  const Response r = w.ask_slot("/api/pools/0/slots/5");
  ASSERT_EQ(r.status, 200) << r.body;
  const Json j = Json::parse(r.body);
  EXPECT_EQ(j["state"], "written");
  EXPECT_EQ(j["page"], 1);
  EXPECT_EQ(j["token_in_page"], 1);
  EXPECT_EQ(j["record"]["token"], Rig::token_of(1, 1));
  EXPECT_EQ(j["record"]["owner_name"], "request 1");
  EXPECT_EQ(j["record"]["chain"].get<std::string>().size(), 16u);
  EXPECT_EQ(j["ledger"]["prev"], 4);
  EXPECT_EQ(j["ledger"]["position"], 1);
  EXPECT_EQ(j["events"][0]["text"], "handed to request 1");
  EXPECT_EQ(j["violations"][0]["number"], 1);
  EXPECT_EQ(Json::parse(w.ask_slot("/api/pools/0/slots/20").body)["state"], "free");
  // Nobody looks on: the question is not left hanging.
  EXPECT_EQ(status_of(w.ask("/api/pools/0/slots/5")), 503);
}

TEST(Site, SlotOfTheOtherFormat) {
  canary::Options options;
  options.format = canary::Format::sglang;
  Rig rig(32, options);
  rig.alloc(1, {4, 5});
  rig.run(1, 0, {4, 5});
  Feed feed("test");
  feed.end(rig.monitor);
  const Site site({true, ""}, &feed);
  Response r;
  std::atomic<bool> done = false;
  std::thread asker([&] {
    r = site.answer(get("/api/pools/0/slots/5"));
    done = true;
  });
  while (!done) feed.look(rig.monitor);
  asker.join();
  const Json j = Json::parse(r.body);
  EXPECT_EQ(j["record"]["token"], Rig::token_of(1, 1));
  EXPECT_EQ(j["record"]["position"], 1);
  EXPECT_TRUE(j["ledger"].is_null());
}

TEST(Site, Stats) {
  const Watched w;
  const Json j = w.json("/api/stats");
  const canary::Stats s = w.rig.monitor.stats();
  EXPECT_EQ(j["engine"]["state"], "ended");
  EXPECT_EQ(j["engine"]["name"], "a <test> & more");
  EXPECT_EQ(j["steps"], s.steps);
  EXPECT_EQ(j["entries_verified"], s.records_verified);
  EXPECT_EQ(j["violations"], 1);
  EXPECT_EQ(j["checks"]["tail"], 2);
  EXPECT_EQ(j["canary"]["format"], "serinus");
  ASSERT_EQ(j["history"].size(), 1u);
  EXPECT_EQ(j["history"][0]["steps"], 2);
  EXPECT_EQ(j["history"][0]["verified"], s.records_verified);
  EXPECT_EQ(j["run"], w.json("/api/pools")["run"]);
}

TEST(Site, EveryErrorInEveryForm) {
  const Site site({true, ""}, nullptr);
  const Json list = Json::parse(site.answer(get("/api/errors")).body);
  ASSERT_EQ(list.size(), error_reference().size());
  const std::string index = site.answer(get("/errors")).body;
  std::size_t i = 0;
  for (const ErrorEntry& e : error_reference()) {
    const std::string slug(e.slug), id(e.id);
    EXPECT_EQ(list[i++],
              Json({{"id", e.id}, {"slug", e.slug}, {"title", e.title}, {"message", e.message}}));
    const std::string json = dump(to_json(e));
    EXPECT_EQ(site.answer(get("/api/errors/" + slug)).body, json);
    EXPECT_EQ(site.answer(get("/api/errors/" + id)).body, json);
    const Response page = site.answer(get("/errors/" + slug));
    EXPECT_EQ(page.status, 200);
    EXPECT_EQ(page.type, "text/html; charset=utf-8");
    EXPECT_NE(page.body.find(id), std::string::npos);
    EXPECT_EQ(site.answer(get("/errors/" + id)).body, page.body);
    EXPECT_NE(index.find("href=\"/errors/" + slug + "\""), std::string::npos) << slug;
    // No page links to one that is not there.
    for (std::size_t at = 0; (at = page.body.find("href=\"/", at)) != std::string::npos; ++at) {
      const std::size_t begin = at + 6, end = page.body.find('"', begin);
      const std::string target = page.body.substr(begin, end - begin);
      EXPECT_EQ(site.answer(get(target)).status, 200) << slug << " links to " << target;
    }
  }
  for (const char* path : {"/errors/nope", "/api/errors/nope", "/api/errors/", "/errors/../errors",
                           "/errors/%2e%2e/%2e%2e/etc/passwd", "/api/errors/kv%20must"}) {
    EXPECT_EQ(status_of(site.answer(get(path))), 404) << path;
  }
}

TEST(Site, SearchInTheErrors) {
  const Site site({true, ""}, nullptr);
  const std::string found = site.answer(get("/errors?q=ValueError:+kv+must+be+contiguous")).body;
  EXPECT_NE(found.find("/errors/kv-must-be-contiguous"), std::string::npos);
  EXPECT_EQ(found.find("/errors/unknown-layout"), std::string::npos);
  EXPECT_NE(site.answer(get("/errors?q=flipped+BIT")).body.find("Nothing here"), std::string::npos)
      << "situations are not searched";
  EXPECT_NE(site.answer(get("/errors?q=srn2000")).body.find("kv-must-be"), std::string::npos);
  const std::string hostile = site.answer(get("/errors?q=%3Cscript%3Ealert(%22x%22)")).body;
  EXPECT_EQ(hostile.find("<script>alert"), std::string::npos);
  EXPECT_NE(hostile.find("&lt;script&gt;alert(&quot;x&quot;)"), std::string::npos);
}

TEST(Site, EveryReasonHasAPage) {
  std::set<std::string_view> slugs;
  for (std::size_t i = 0; i < canary::kNumReasons; ++i) {
    const auto reason = static_cast<canary::Reason>(1u << i);
    const ErrorEntry& page = canary::page_of(reason);
    EXPECT_TRUE(slugs.insert(page.slug).second);
    EXPECT_TRUE(page.title.starts_with(canary::names_of(reason) + ":")) << page.slug;
    canary::Violation v;
    v.reasons = reason;
    EXPECT_EQ(find_error(canary::to_text(v, "kv"))->slug, page.slug);
  }
  EXPECT_EQ(canary::page_of(canary::Reason::none).slug, "canary-violation");
}

TEST(Site, ThePageNeedsNothingElse) {
  const Site site({true, ""}, nullptr);
  const Response page = site.answer(get("/"));
  EXPECT_EQ(page.type, "text/html; charset=utf-8");
  ASSERT_GE(page_files().size(), 5u);
  for (const PageFile& file : page_files()) {
    EXPECT_EQ(site.answer(get("/page/" + std::string(file.name))).body, file.text);
    for (const char* outside : {"src=\"http", "href=\"http", "url(", "@import", "//cdn",
                                " style=\"", "eval(", "innerHTML"}) {
      EXPECT_EQ(file.text.find(outside), std::string_view::npos) << file.name << ": " << outside;
    }
  }
  EXPECT_EQ(site.answer(get("/page/live.js")).type, "text/javascript; charset=utf-8");
  for (const char* path : {"/page/", "/page/..%2fsite.cpp", "/page/nope.js", "/page", "/nope", "//",
                           "/favicon.ico", "/api", "/api/", "/api/nope", "/metrics/", "/HEALTHZ"}) {
    EXPECT_EQ(status_of(site.answer(get(path))), 404) << path;
  }
}

TEST(Site, ABrowserIsRefusedWithAPage) {
  const Site site({true, ""}, nullptr);
  Head h = get("/nope");
  h.accept = "text/html,application/xhtml+xml";
  const Response r = site.answer(h);
  EXPECT_EQ(r.status, 404);
  EXPECT_EQ(r.type, "text/html; charset=utf-8");
}

TEST(Site, OnlyGetAndHead) {
  const Site site({true, ""}, nullptr);
  for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "get"}) {
    Head h = get("/healthz");
    h.method = method;
    const Response r = site.answer(h);
    EXPECT_EQ(status_of(r), 405) << method;
    EXPECT_EQ(r.headers.at(0).second, "GET, HEAD");
  }
  Head h = get("/healthz");
  h.method = "HEAD";
  EXPECT_EQ(site.answer(h).status, 200);
}

TEST(Site, TargetsThatAreNone) {
  const Site site({true, ""}, nullptr);
  for (const char* target : {"*", "http://127.0.0.1/healthz", "/%", "/%zz", "/%00"}) {
    EXPECT_EQ(status_of(site.answer(get(target))), 400) << target;
  }
}

TEST(Site, APageOfAnotherHostCannotReachIt) {
  const Site site({true, ""}, nullptr);
  Head h = get("/api/violations");
  h.host = "evil.example:7767";
  EXPECT_EQ(status_of(site.answer(h)), 421);
  h.host = "";
  EXPECT_EQ(status_of(site.answer(h)), 421);
  h.host.reset();  // HTTP/1.0
  EXPECT_EQ(site.answer(h).status, 200);
}

TEST(Site, WithATokenEveryRouteNeedsIt) {
  const std::string token = "0123456789abcdef";
  const Site site({false, token}, nullptr);
  for (const char* path : {"/", "/metrics", "/healthz", "/errors", "/api/errors", "/api/violations",
                           "/page/style.css", "/nope", "*"}) {
    Head h = get(path);
    h.host = "machine.example";
    EXPECT_EQ(status_of(site.answer(h)), 401) << path;
    for (const char* bad :
         {"Bearer", "Bearer ", "Bearer 0123456789abcdeF", "Bearer 0123456789abcdef0",
          "Bearer 0123456789abcde", "Basic 0123456789abcdef", "0123456789abcdef"}) {
      h.authorization = bad;
      EXPECT_EQ(status_of(site.answer(h)), 401) << path << ' ' << bad;
    }
    h.authorization = "bearer " + token;
    EXPECT_NE(site.answer(h).status, 401) << path;
  }
  const Response r = site.answer(get("/"));
  EXPECT_EQ(r.headers.at(0).first, "WWW-Authenticate");
}

}  // namespace
}  // namespace serinus::serve
