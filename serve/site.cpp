#include "serve/site.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <set>
#include <utility>

#include <serinus/metrics.h>
#include <serinus/version.h>

#include "base/raise.h"
#include "serve/error_html.h"
#include "serve/error_json.h"
#include "serve/page.h"

namespace serinus::serve {

namespace {

constexpr std::size_t kMaxListed = 1000, kUsuallyListed = 100;
constexpr std::chrono::milliseconds kPatience{1000};
constexpr const char* kHtml = "text/html; charset=utf-8";

/// Thrown by a route, answered by answer().
struct Refused {
  int status;
  std::string why;
};

Response json(const Json& j) {
  return {
      200, "application/json", j.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n", {}};
}

Response html(std::string text) {
  return {200, kHtml, std::move(text), {}};
}

std::string hex(std::uint64_t n) {
  return fmt::format("{:016x}", n);
}

double age_seconds(const Picture& p) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - p.taken).count();
}

std::optional<std::uint64_t> number_in(const Target& target, std::string_view key,
                                       std::uint64_t most) {
  const std::string* text = target.find(key);
  if (text == nullptr) return std::nullopt;
  const auto n = parse_number(*text, most);
  if (!n) throw Refused{400, fmt::format("{} must be a number from 0 to {}", key, most)};
  return n;
}

std::string_view type_of(std::string_view name) {
  if (name.ends_with(".js")) return "text/javascript; charset=utf-8";
  if (name.ends_with(".css")) return "text/css; charset=utf-8";
  if (name.ends_with(".svg")) return "image/svg+xml";
  return kHtml;
}

bool wants_html(const Head& request) {
  return request.accept.find("text/html") != std::string::npos;
}

Json error_list() {
  Json list = Json::array();
  for (const ErrorEntry& e : error_reference())
    list.push_back({{"id", e.id}, {"slug", e.slug}, {"title", e.title}, {"message", e.message}});
  return list;
}

std::string owner_name(const Picture& picture, canary::Owner owner) {
  if (owner == picture.cache) return "the prefix cache";
  return owner == 0 ? "nobody" : fmt::format("request {}", owner);
}

Json record_json(const Picture& picture, const canary::Record& r, canary::Format format) {
  if (format == canary::Format::sglang) {  // the same 32 bytes, read as that format has them
    struct {
      std::int64_t token, position;
      std::uint64_t chain, digest;
    } s;
    static_assert(sizeof s == sizeof r);
    std::memcpy(&s, &r, sizeof s);
    return {{"token", s.token},
            {"position", s.position},
            {"chain", hex(s.chain)},
            {"kv_digest", hex(s.digest)}};
  }
  return {{"token", r.token},
          {"position", r.position},
          {"owner", r.owner},
          {"owner_name", owner_name(picture, r.owner)},
          {"generation", r.generation},
          {"chain", hex(r.chain)},
          {"kv_digest", hex(r.kv_digest)}};
}

Json ledger_json(const Picture& picture, const canary::LedgerEntry& e) {
  return {{"owner", e.owner},
          {"owner_name", owner_name(picture, e.owner)},
          {"generation", e.generation},
          {"prev", e.prev},
          {"position", std::int64_t{e.written} - 1},
          {"previous_owner", e.previous_owner},
          {"previous_owner_name", owner_name(picture, e.previous_owner)}};
}

std::string event_text(const Picture& picture, const canary::LedgerEvent& e) {
  const auto name = [&](canary::Owner owner) { return owner_name(picture, owner); };
  switch (e.kind) {
    case canary::LedgerEventKind::alloc:
      return "handed to " + name(e.owner);
    case canary::LedgerEventKind::free:
      return e.owner == 0 ? "given back" : "given back by " + name(e.owner);
    case canary::LedgerEventKind::transfer:
      return fmt::format("passed from {} to {}", name(e.owner),
                         name(static_cast<canary::Owner>(e.peer)));
    case canary::LedgerEventKind::moved_from:
      return fmt::format("its content came from slot {}", e.peer);
    case canary::LedgerEventKind::moved_to:
      return fmt::format("its content went to slot {}", e.peer);
    case canary::LedgerEventKind::store:
      return "its content was copied out";
    case canary::LedgerEventKind::load:
      return "loaded for " + name(e.owner);
  }
  return canary::name_of(e.kind);
}

Json events_json(const Picture& picture, const std::vector<canary::LedgerEvent>& events) {
  Json list = Json::array();
  for (const canary::LedgerEvent& e : events) {
    list.push_back({{"step", e.step},
                    {"kind", canary::name_of(e.kind)},
                    {"owner", e.owner},
                    {"peer", e.peer},
                    {"text", event_text(picture, e)}});
  }
  return list;
}

Json violation_json(const SeenViolation& seen) {
  Json j = {{"number", seen.number}, {"time", seen.time}, {"note", seen.note}};
  Json fields = Json::parse(canary::to_json(seen.violation, seen.pool), nullptr, false);
  if (fields.is_object()) {  // a pool's name may be no UTF-8
    for (auto& [key, value] : fields.items()) j[key] = std::move(value);
  }
  j["pool_number"] = seen.violation.pool;
  Json pages = Json::array();
  for (std::size_t i = 0; i < canary::kNumReasons; ++i) {
    const auto reason = static_cast<canary::Reason>(1u << i);
    if (any(seen.violation.reasons & reason)) pages.push_back(page_of(reason).slug);
  }
  j["pages"] = std::move(pages);
  j["text"] = canary::to_text(seen.violation, seen.pool);
  return j;
}

Json pool_json(const Picture& picture, std::size_t i, const std::vector<SeenViolationPtr>& seen) {
  const PoolPicture& p = picture.pools[i];
  std::vector<std::uint32_t> marks(p.written.size());
  // One that was listed again with a new reason is one: it kept its first step.
  std::set<std::pair<std::int64_t, std::uint64_t>> marked;
  for (const SeenViolationPtr& v : seen) {
    const std::int64_t slot = v->violation.slot;
    if (v->violation.pool == static_cast<int>(i) && slot >= 0 && slot < p.num_slots &&
        marked.emplace(slot, v->violation.first_step).second)
      ++marks[static_cast<std::size_t>(slot / p.slots_per_cell)];
  }
  std::int64_t empty = 0, written = 0, cached = 0;
  for (const std::uint32_t n : p.empty) empty += n;
  for (const std::uint32_t n : p.written) written += n;
  for (const std::uint32_t n : p.cached) cached += n;
  Json by_reason = Json::object();
  std::int64_t live = 0;
  if (i < picture.metrics.pools.size()) {
    const canary::PoolStats& s = picture.metrics.pools[i];
    live = s.live_slots;
    for (std::size_t r = 0; r < canary::kNumReasons; ++r)
      by_reason[canary::names_of(static_cast<canary::Reason>(1u << r))] = s.violations[r];
  }
  return {{"pool", i},
          {"name", p.name},
          {"kind", name_of(p.kind)},
          {"layout", p.layout},
          {"layers", p.num_layers},
          {"page_size", p.page_size},
          {"slots", p.num_slots},
          {"token_bytes", p.token_bytes},
          {"null_slot", p.null_slot == canary::NullSlot::clean ? "clean" : "scratch"},
          {"protected", live},
          {"counts",
           {{"free", p.num_slots - empty - written},
            {"empty", empty},
            {"written", written},
            {"cached", cached}}},
          {"violations", std::move(by_reason)},
          {"map",
           {{"passes", p.passes},
            {"slots_per_cell", p.slots_per_cell},
            {"cells", p.num_cells()},
            {"empty", p.empty},
            {"written", p.written},
            {"cached", p.cached},
            {"violations", std::move(marks)}}}};
}

Json by_moment(const auto& values) {
  Json j = Json::object();
  for (std::size_t m = 0; m < canary::kNumMoments; ++m)
    j[canary::name_of(static_cast<canary::Moment>(m))] = values[m];
  return j;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> security_headers() {
  return {{"Content-Security-Policy",
           "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src "
           "'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"},
          {"X-Content-Type-Options", "nosniff"},
          {"X-Frame-Options", "DENY"},
          {"Referrer-Policy", "no-referrer"},
          {"Cross-Origin-Resource-Policy", "same-origin"},
          {"Cross-Origin-Opener-Policy", "same-origin"},
          {"Cache-Control", "no-store"}};
}

struct Site::Asked {
  const Target& target;
  std::string_view path;  // behind "/api/"
};

Response Site::refuse(int status, const std::string& why) {
  const ErrorEntry& e = entry_of(errors::Page::http_request_refused);
  const Json error = {
      {"status", status},
      {"id", e.id},
      {"slug", e.slug},
      {"message", error_message(errors::Page::http_request_refused,
                                {{"status", std::to_string(status)}, {"got", why}})}};
  Response r{status, "application/json", dump(Json{{"error", error}}), {}};
  if (status == 401) r.headers.emplace_back("WWW-Authenticate", "Bearer realm=\"serinus\"");
  if (status == 405) r.headers.emplace_back("Allow", "GET, HEAD");
  return r;
}

std::optional<Response> Site::keep_out(const Head& request) const {
  if (!options_.token.empty()) {
    constexpr std::string_view kBearer = "bearer ";
    std::string scheme = request.authorization.substr(0, kBearer.size());
    for (char& c : scheme) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    const std::string_view all = request.authorization;
    const bool known = scheme == kBearer && same_secret(all.substr(kBearer.size()), options_.token);
    if (!known) return refuse(401, "Authorization: Bearer TOKEN is needed, with the right token");
  }
  // HTTP/1.0 may come without a Host: then no browser sent it.
  if (options_.loopback && request.host && !is_loopback_host(*request.host)) {
    return refuse(421, "the Host header names no loopback address");
  }
  if (request.method != "GET" && request.method != "HEAD") {
    return refuse(405, "only GET and HEAD are answered");
  }
  return std::nullopt;
}

Response Site::answer(const Head& request) const {
  if (auto refusal = keep_out(request)) return *refusal;
  try {
    const std::optional<Target> target = parse_target(request.target);
    if (!target) throw Refused{400, "the target is no path, or is escaped wrongly"};
    std::string_view path = target->path;
    if (path == "/") return html(std::string(page_file("index.html")->text));
    if (path == "/healthz") return health();
    if (path == "/metrics") {
      std::vector<canary::MetricsSample> samples;
      if (feed_ != nullptr) samples.push_back(feed_->picture()->metrics);
      return {200, canary::kMetricsType, canary::metrics_text(samples), {}};
    }
    const auto behind = [&](std::string_view prefix) {
      if (!path.starts_with(prefix)) return false;
      path.remove_prefix(prefix.size());
      return true;
    };
    if (behind("/api/")) return api({*target, path});
    if (behind("/page/")) {
      if (const PageFile* file = page_file(path))
        return {200, std::string(type_of(file->name)), std::string(file->text), {}};
    } else if (path == "/errors" || path == "/errors/") {
      const std::string* query = target->find("q");
      return html(error_index_html(query != nullptr ? *query : std::string()));
    } else if (behind("/errors/")) {
      if (const ErrorEntry* e = error_named(path)) return html(error_page_html(*e));
      throw Refused{404, "there is no such error; /errors lists them all"};
    }
    throw Refused{404, "there is nothing at this address"};
  } catch (const Refused& r) {
    Response response = refuse(r.status, r.why);
    if (wants_html(request)) {
      response.type = kHtml;
      response.body = refusal_html(r.status, r.why);
    }
    return response;
  }
}

Response Site::api(const Asked& asked) const {
  std::string_view path = asked.path;
  if (path == "errors") return json(error_list());
  if (path.starts_with("errors/")) {
    const ErrorEntry* e = error_named(path.substr(std::string_view("errors/").size()));
    if (e == nullptr) throw Refused{404, "there is no such error; /api/errors lists them all"};
    return {200, "application/json", dump(to_json(*e)), {}};  // as explain --json prints it
  }
  if (path == "stats") return stats();
  if (path == "violations") return violations(asked.target);
  if (path == "pools") return pools("");
  if (path.starts_with("pools/")) return pools(path.substr(std::string_view("pools/").size()));
  throw Refused{404, "there is no such part of the API"};
}

Response Site::health() const {
  Json j = {{"status", "ok"}, {"version", version_string()}};
  if (feed_ == nullptr) {
    j["engine"] = name_of(EngineState::none);
  } else {
    const auto picture = feed_->picture();
    j["engine"] = name_of(picture->state);
    j["step"] = picture->metrics.stats.steps;
    j["age_seconds"] = age_seconds(*picture);
  }
  return json(j);
}

Response Site::stats() const {
  if (feed_ == nullptr) return json({{"run", ""}, {"engine", {{"state", "none"}, {"name", ""}}}});
  const auto picture = feed_->picture();
  const canary::Stats& s = picture->metrics.stats;
  Json history = Json::array();
  for (const HistoryPoint& p : picture->history) {
    history.push_back({{"step", p.step},
                       {"steps", p.steps},
                       {"verified", p.verified},
                       {"seconds", p.check_seconds}});
  }
  const std::array seconds{s.seconds_head, s.seconds_tail, s.seconds_sweep};
  return json({{"run", hex(feed_->run())},
               {"engine", {{"state", name_of(picture->state)}, {"name", picture->engine}}},
               {"canary",
                {{"format", canary::name_of(picture->options.format)},
                 {"depth", canary::name_of(picture->options.depth)},
                 {"mode", name_of(picture->options.mode)}}},
               {"age_seconds", age_seconds(*picture)},
               {"steps", s.steps},
               {"slots_protected", s.live_slots},
               {"entries_written", s.records_written},
               {"entries_verified", s.records_verified},
               {"digested_bytes", s.bytes_digested},
               {"violations", s.violations},
               {"sightings", s.sightings},
               {"ring_dropped", s.dropped},
               {"skipped", {{"empty", s.skipped_empty}, {"out_of_range", s.out_of_range}}},
               {"checks", by_moment(s.checks)},
               {"seconds", by_moment(seconds)},
               {"sweeps", s.sweeps},
               {"last_sweep_time", s.last_sweep_time},
               {"sweep_bound_steps", s.sweep_bound_steps},
               {"history", std::move(history)}});
}

Response Site::violations(const Target& target) const {
  const auto since = number_in(target, "since", std::numeric_limits<std::uint64_t>::max());
  const auto limit = number_in(target, "limit", kMaxListed);
  Feed::Violations v;
  if (feed_ != nullptr) v = feed_->violations(since, limit.value_or(kUsuallyListed));
  Json list = Json::array();
  for (const SeenViolationPtr& seen : v.list) list.push_back(violation_json(*seen));
  return json({{"run", feed_ != nullptr ? hex(feed_->run()) : ""},
               {"last", v.last},
               {"first_kept", v.first_kept},
               {"violations", std::move(list)}});
}

Response Site::pools(std::string_view rest) const {
  std::shared_ptr<const Picture> picture;
  if (feed_ != nullptr) {
    feed_->want_maps();
    picture = feed_->picture();
  }
  const std::size_t count = picture != nullptr ? picture->pools.size() : 0;
  const auto seen = [&] { return feed_->violations(std::nullopt, Feed::kMaxViolations).list; };
  if (rest.empty()) {
    Json list = Json::array();
    if (count > 0) {
      const auto all = seen();
      for (std::size_t i = 0; i < count; ++i) list.push_back(pool_json(*picture, i, all));
    }
    return json({{"run", feed_ != nullptr ? hex(feed_->run()) : ""}, {"pools", std::move(list)}});
  }
  const std::size_t slash = std::min(rest.find('/'), rest.size());
  const auto pool = parse_number(rest.substr(0, slash), std::numeric_limits<int>::max());
  if (!pool || *pool >= count)
    throw Refused{
        404, count == 0 ? "there are no pools" : fmt::format("the pools are 0 to {}", count - 1)};
  rest.remove_prefix(slash);
  if (rest.empty()) return json(pool_json(*picture, *pool, seen()));
  constexpr std::string_view kSlots = "/slots/";
  if (!rest.starts_with(kSlots)) throw Refused{404, "there is no such part of a pool"};
  const PoolPicture& p = picture->pools[*pool];
  const auto number =
      parse_number(rest.substr(kSlots.size()), static_cast<std::uint64_t>(p.num_slots - 1));
  if (!number) throw Refused{404, fmt::format("slots of this pool are 0 to {}", p.num_slots - 1)};
  return slot(static_cast<int>(*pool), static_cast<std::int64_t>(*number));
}

Response Site::slot(int pool, std::int64_t slot) const {
  const std::optional<SlotAnswer> answer = feed_->ask(pool, slot, kPatience);
  if (!answer) throw Refused{503, "the engine does not answer now: it is between two steps"};
  const auto picture = feed_->picture();
  const PoolPicture& p = picture->pools[static_cast<std::size_t>(pool)];
  Json here = Json::array();
  for (const SeenViolationPtr& v : feed_->violations(std::nullopt, Feed::kMaxViolations).list) {
    if (v->violation.pool == pool && v->violation.slot == slot) here.push_back(violation_json(*v));
  }
  return json(
      {{"pool", pool},
       {"pool_name", p.name},
       {"slot", slot},
       {"page", slot / p.page_size},
       {"token_in_page", slot % p.page_size},
       {"state", name_of(answer->state)},
       {"record", answer->record ? record_json(*picture, *answer->record, picture->options.format)
                                 : Json(nullptr)},
       {"ledger", answer->ledger ? ledger_json(*picture, *answer->ledger) : Json(nullptr)},
       {"events", events_json(*picture, answer->events)},
       {"violations", std::move(here)}});
}

}  // namespace serinus::serve
