// Who runs in a step, and with how many tokens: decodes first, then prompts chunk by chunk, then
// new requests; the youngest is preempted when the pool is short.
#include <algorithm>
#include <utility>

#include "base/raise.h"
#include "engine/engine.h"
#include "engine/watched.h"

namespace serinus::engine {

namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

constexpr std::size_t kBatchMultiple = 8;  // captured graphs have few sizes: batches are padded

}  // namespace

void Engine::schedule() {
  batch_ = {};
  in_batch_.clear();
  std::int64_t budget = options_.step_tokens;
  schedule_decodes(budget);
  schedule_prefills(budget);
  admit(budget);
  // Prompts that hold all pages between them and cannot go on: the youngest makes room.
  while (in_batch_.empty() && transfers_.empty() && running_.size() > 1) {
    preempt_last();
    schedule_prefills(budget);
  }
  if (in_batch_.empty() && transfers_.empty() && later_.empty() &&
      !(running_.empty() && waiting_.empty()))
    raise(errors::Page::broken_invariant, {{"what", "requests wait and none can run"}});
  pad_batch();
}

void Engine::schedule_decodes(std::int64_t& budget) {
  for (std::size_t i = 0; i < running_.size(); ++i) {
    Request& r = *running_[i];
    const std::int64_t tokens = r.known() - r.length;
    if (r.phase != Request::Phase::running || r.produced == 0 || tokens > options_.decode_tokens)
      continue;
    bool reserved = reserve(r, tokens);
    while (!reserved && running_.size() > i + 1) {
      preempt_last();
      reserved = reserve(r, tokens);
    }
    if (!reserved) continue;  // what holds the pages is in flight, or not preemptible: wait
    add_to_batch(r, tokens);
    budget -= tokens;
  }
}

void Engine::schedule_prefills(std::int64_t& budget) {
  for (const RequestPtr& r : running_) {
    if (budget <= 0) return;
    if (r->phase != Request::Phase::running) continue;
    if (r->produced > 0 && r->known() - r->length <= options_.decode_tokens) continue;
    add_chunk(*r, budget);
  }
}

void Engine::admit(std::int64_t& budget) {
  while (budget > 0 && !waiting_.empty() && table_.free_rows() > 0 &&
         static_cast<std::int64_t>(running_.size()) < options_.max_running &&
         !(options_.serial && !running_.empty())) {
    if (!admit_first(budget)) return;
  }
}

bool Engine::admit_first(std::int64_t& budget) {
  Request& r = *waiting_.front();
  // A prompt may be hit whole: then its last token runs again for its logits, and writes nothing.
  std::vector<RadixCache::Node> path;
  const std::int64_t known = r.known() - (draft_pool_ >= 0 ? 1 : 0);
  cache_.match(r.text, known / options_.page, path);
  path.resize(usable_with_window(path));
  const auto on_device = static_cast<std::size_t>(
      std::find_if(path.begin(), path.end(), [&](auto n) { return cache_.page(n) < 0; }) -
      path.begin());
  const auto matched = std::span(path).first(on_device);
  const std::int64_t need =
      ceil_div(r.known(), options_.page) - static_cast<std::int64_t>(on_device);
  cache_.lock(matched);
  // A page in hand for every request that runs, so that admitting does not mean preempting.
  const auto headroom = static_cast<std::int64_t>(running_.size());
  if (available_pages() - promised_pages_ < need + headroom && !running_.empty()) {
    cache_.unlock(matched);
    return false;
  }
  if (on_device < path.size() && !issue_load(r, path, on_device)) {
    cache_.unlock(matched);
    return false;
  }
  r.path.assign(matched.begin(), matched.end());
  for (const RadixCache::Node n : r.path) r.pages.push_back(cache_.page(n));
  r.promised = need - static_cast<std::int64_t>(path.size() - on_device);
  promised_pages_ += r.promised;
  r.row = table_.take_row();
  const std::int64_t hit = static_cast<std::int64_t>(path.size()) * options_.page;
  if (r.admitted_before) {
    counters_.rehit_tokens += hit;
  } else {
    counters_.prefix_hit_tokens += hit;
    counters_.host_hit_tokens += static_cast<std::int64_t>(path.size() - on_device) * options_.page;
    counters_.input_tokens += r.text.input_length();
  }
  r.admitted_before = true;
  running_.push_back(std::move(waiting_.front()));
  waiting_.pop_front();
  if (on_device < path.size()) {
    r.phase = Request::Phase::loading;
    return true;
  }
  r.phase = Request::Phase::running;
  attach(r);
  add_chunk(r, budget);
  return true;
}

// With a sliding window, a prefix can be continued only where its last window is still in the SWA
// pool.
std::size_t Engine::usable_with_window(const std::vector<RadixCache::Node>& path) const {
  if (swa_pool_ < 0) return path.size();
  const std::int64_t window_pages = ceil_div(options_.window, options_.page);
  std::size_t usable = 0;
  std::int64_t run = 0;  // pages up to here that have a place in the SWA pool
  for (std::size_t i = 0; i < path.size(); ++i) {
    const std::int64_t slot = cache_.page(path[i]) * options_.page;
    run = full_to_swa_[static_cast<std::size_t>(slot)] != 0 ? run + 1 : 0;
    if (run >= std::min(window_pages, static_cast<std::int64_t>(i) + 1)) usable = i + 1;
  }
  return usable;
}

std::int64_t Engine::available_pages() const noexcept {
  return allocator_.free_pages() + cache_.evictable_pages();
}

void Engine::add_chunk(Request& r, std::int64_t& budget) {
  const std::int64_t pending = r.known() - r.length;
  std::int64_t tokens = std::min(pending, budget);
  const std::int64_t room = static_cast<std::int64_t>(r.pages.size()) * options_.page - r.length;
  tokens = std::min(tokens, room + available_pages() * options_.page);
  if (swa_allocator_)
    tokens = std::min(tokens, std::max(room, swa_allocator_->capacity() * options_.page / 2));
  while (tokens > 0 && !reserve(r, tokens)) tokens /= 2;
  if (tokens <= 0 && pending > 0) return;
  add_to_batch(r, tokens);
  budget -= tokens;
}

// Pages for `tokens` more tokens of r.
bool Engine::reserve(Request& r, std::int64_t tokens) {
  const std::int64_t count =
      ceil_div(r.length + tokens, options_.page) - static_cast<std::int64_t>(r.pages.size());
  if (count <= 0) return true;
  if (!take_pages(r.owner, count, r.pages)) return false;
  const std::int64_t kept = std::min(count, r.promised);
  r.promised -= kept;
  promised_pages_ -= kept;
  return true;
}

void Engine::add_to_batch(Request& r, std::int64_t tokens) {
  const std::int64_t end = r.length + tokens;
  // The token after the last is sampled by this forward: known when it ends.
  const std::int64_t known = std::min(end + 1, r.text.total_length());
  std::int32_t* truth = table_.tokens(r.row);
  for (std::int64_t p = r.length; p < known; ++p)
    truth[p] = static_cast<std::int32_t>(r.text.token(p));
  write_cells(r, r.length, end);
  cells_changed(r.row, end, known);
  batch_.rows.push_back(r.row);
  batch_.prefix_lens.push_back(r.length);
  batch_.extend_lens.push_back(tokens);
  batch_.valid_lens.push_back(known);
  batch_.owners.push_back(r.owner);
  for (std::int64_t p = r.length; p < end; ++p) {
    batch_.input_ids.push_back(truth[p]);
    if (draft_pool_ >= 0) batch_.draft_ids.push_back(r.text.token(p + 1));
    batch_.positions.push_back(p);
    batch_.out_cache_loc.push_back(
        r.pages[static_cast<std::size_t>(p / options_.page)] * options_.page + p % options_.page);
  }
  in_batch_.push_back(&r);
}

void Engine::pad_batch() {
  batch_.write_loc = batch_.out_cache_loc;
  while (batch_.rows.size() % kBatchMultiple != 0) {
    batch_.rows.push_back(0);
    batch_.prefix_lens.push_back(0);
    batch_.extend_lens.push_back(0);
    batch_.valid_lens.push_back(0);
    batch_.owners.push_back(0);
  }
}

// The request's row now shows its cached pages.
void Engine::attach(Request& r) {
  r.length = static_cast<std::int64_t>(r.path.size()) * options_.page;
  r.swa_begin = static_cast<std::int64_t>(r.path.size());
  if (r.length == 0) return;
  std::int32_t* truth = table_.tokens(r.row);
  for (std::int64_t p = 0; p < r.length; ++p) truth[p] = static_cast<std::int32_t>(r.text.token(p));
  write_cells(r, 0, r.length);
  watched([&](canary::Monitor& m) { m.on_attach(r.owner, r.row, 0, r.length); });
}

void Engine::write_cells(Request& r, std::int64_t begin, std::int64_t end) {
  cells_scratch_.clear();
  for (std::int64_t p = begin; p < end; ++p) {
    const std::int64_t page = r.pages[static_cast<std::size_t>(p / options_.page)];
    cells_scratch_.push_back(static_cast<std::int32_t>(page * options_.page + p % options_.page));
  }
  if (injector_ != nullptr) injector_->table_write(*this, r.row, begin, cells_scratch_);
  std::copy(cells_scratch_.begin(), cells_scratch_.end(), table_.slots(r.row) + begin);
  cells_changed(r.row, begin, end);
}

void Engine::cells_changed(std::int64_t row, std::int64_t begin, std::int64_t end) {
  if (slots_on_device_ && begin < end) changed_cells_.push_back({row, begin, end});
}

void Engine::after_forward() {
  for (std::size_t i = 0; i < in_batch_.size(); ++i) {
    Request& r = *in_batch_[i];
    const bool prefill = r.produced == 0 || batch_.extend_lens[i] > options_.decode_tokens;
    r.length += batch_.extend_lens[i];
    counters_.tokens_written += batch_.extend_lens[i];
    bool finished = false;
    if (r.length == r.known()) {
      r.produced += std::min(options_.decode_tokens, r.text.output_length() - r.produced);
      finished = r.produced == r.text.output_length();  // its last token is never fed back
    }
    if (!finished) {
      if (prefill && swa_pool_ < 0) publish(r, true);
      leave_window(r);
      continue;
    }
    publish(r, false);
    leave(r);
    ++counters_.requests;
    counters_.finished_tokens += r.text.total_length();
    r.phase = Request::Phase::waiting;
  }
  std::erase_if(running_, [](const RequestPtr& r) { return r->phase == Request::Phase::waiting; });
}

// Puts the request's full pages into the prefix cache. Where another request was quicker, this one
// reads the other's page from now on, if it goes on, and gives its own back.
void Engine::publish(Request& r, bool goes_on) {
  const std::size_t first = r.path.size();
  std::vector<std::int64_t> adopted, spare;
  std::int64_t repointed = -1;
  for (std::int64_t i = static_cast<std::int64_t>(first); i < r.length / options_.page; ++i) {
    std::int64_t& page = r.pages[static_cast<std::size_t>(i)];
    const RadixCache::Inserted in =
        cache_.insert(r.path.empty() ? RadixCache::kRoot : r.path.back(), r.text, i, page);
    if (in.node < 0) break;
    if (in.adopted) {
      allocator_.publish(page);
      adopted.push_back(page);
    } else if (cache_.page(in.node) != page) {
      spare.push_back(page);
      page = cache_.page(in.node);
      if (repointed < 0) repointed = i;
    }
    r.path.push_back(in.node);
    cache_.lock(std::span(&in.node, 1));
  }
  hand_to_cache(adopted, r.owner);
  if (!spare.empty()) {
    counters_.deduplicated_tokens += static_cast<std::int64_t>(spare.size()) * options_.page;
    const std::int64_t end = static_cast<std::int64_t>(r.path.size()) * options_.page;
    if (goes_on) {
      write_cells(r, repointed * options_.page, end);
      watched(
          [&](canary::Monitor& m) { m.on_attach(r.owner, r.row, repointed * options_.page, end); });
    }
    give_pages(spare);
  }
  if (host_) issue_store(r, first);
}

// What the window has left behind goes from the SWA pool, unless the cache holds it.
void Engine::leave_window(Request& r) {
  if (swa_pool_ < 0) return;
  const std::int64_t end = (r.length - options_.window) / options_.page;
  if (end <= r.swa_begin) return;
  give_swa(std::span(r.pages).subspan(static_cast<std::size_t>(r.swa_begin),
                                      static_cast<std::size_t>(end - r.swa_begin)));
  r.swa_begin = end;
}

// The request reads and holds nothing any more.
void Engine::leave(Request& r) {
  const std::vector<std::int64_t> own(r.pages.begin() + static_cast<std::ptrdiff_t>(r.path.size()),
                                      r.pages.end());
  watched([&](canary::Monitor& m) { m.on_release(r.owner); });
  faults_.released(r.owner, step_);
  give_pages(own);
  cache_.unlock(r.path);
  promised_pages_ -= std::exchange(r.promised, 0);
  table_.give_row(std::exchange(r.row, -1));
  r.pages.clear();
  r.path.clear();
  r.length = 0;
  r.swa_begin = 0;
}

void Engine::preempt_last() {
  preempt(running_.end() - 1);
}

void Engine::preempt(std::vector<RequestPtr>::iterator at) {
  RequestPtr r = std::move(*at);
  running_.erase(at);
  leave(*r);
  r->phase = Request::Phase::waiting;
  waiting_.push_front(std::move(r));
  ++counters_.preemptions;
}

}  // namespace serinus::engine
