#include "engine/engine.h"

#include <algorithm>
#include <utility>

#include "base/parallel.h"
#include "base/raise.h"
#include "engine/mix.h"
#include "engine/model.h"
#include "engine/watched.h"
#include "gpu/async.h"
#include "gpu/device.h"

namespace serinus::engine {

namespace {

// Slots are int32 in the request table, as in every engine.
constexpr std::int64_t kMaxSlots = std::int64_t{1} << 31;

std::int64_t pages_of(std::int64_t tokens, std::int64_t page) {
  return (tokens + page - 1) / page;
}

std::int64_t swa_tokens_of(const EngineOptions& o) {
  return o.swa_tokens > 0 ? o.swa_tokens : o.pool_tokens / 2;
}

const EngineOptions& checked(const EngineOptions& o) {
  const auto require = [](bool ok, const char* name, std::int64_t got, const char* want) {
    if (!ok)
      raise(errors::Page::engine_option,
            {{"name", name}, {"want", want}, {"got", std::to_string(got)}});
  };
  require(o.page >= 1 && o.page <= 256, "page", o.page, "1 to 256 tokens");
  require(o.layers >= 1 && o.layers <= 1024, "layers", o.layers, "1 to 1024");
  require(o.pool_tokens >= o.page && o.pool_tokens < kMaxSlots - 2 * o.page, "pool_tokens",
          o.pool_tokens, "a page to 2^31 tokens (slots are int32 in the request table)");
  require(o.window >= 0, "window", o.window, "0 (none) or more tokens");
  require(o.swa_tokens >= 0 && o.swa_tokens < kMaxSlots - 2 * o.page, "swa_tokens", o.swa_tokens,
          "0 to 2^31 tokens");
  require(o.draft_layers >= 0 && o.draft_layers <= 1024, "draft_layers", o.draft_layers,
          "0 (none) to 1024");
  require(o.host_tokens >= 0 && o.host_tokens < kMaxSlots, "host_tokens", o.host_tokens,
          "0 (none) to 2^31 tokens");
  require(o.host_tokens == 0 || o.window == 0, "host_tokens", o.host_tokens,
          "0 together with a window: the second tier holds no SWA pages");
  require(o.max_running >= 1 && o.max_running <= 65536, "max_running", o.max_running,
          "1 to 65536 requests");
  require(o.step_tokens >= 1, "step_tokens", o.step_tokens, "at least 1 token");
  require(o.decode_tokens >= 1, "decode_tokens", o.decode_tokens, "at least 1 token");
  if (o.device.type != DeviceType::cpu) gpu::require_gpu("the engine's pool", o.device);
  require(o.max_length >= 0 && o.max_length < kMaxSlots, "max_length", o.max_length,
          "0 to 2^31 tokens");
  return o;
}

KvLayout layout_of(const EngineOptions& o) {
  KvLayoutOptions options = o.layout_options;
  options.page_size = o.page;
  return kv_layout(o.layout, options);
}

}  // namespace

Engine::Engine(const EngineOptions& options)
    : options_(checked(options)),
      allocator_(pages_of(options.pool_tokens, options.page) + 1),
      table_(options.max_running + 1, std::max<std::int64_t>(options.max_length, 1)),
      cache_(options.page, options.draft_layers > 0 ? 1 : 0) {
  const KvLayout layout = layout_of(options);
  const std::int64_t pages = allocator_.num_pages();
  const auto add = [&](const char* name, canary::PoolKind kind, int layers,
                       std::int64_t num_pages) {
    pools_.push_back(
        {name, kind, KvPool(layout, layers, num_pages, options.real_data, options.device)});
    return static_cast<int>(pools_.size()) - 1;
  };
  add("full", canary::PoolKind::full, options.layers, pages);
  if (options.window > 0) {
    swa_allocator_.emplace(pages_of(swa_tokens_of(options), options.page) + 1);
    full_to_swa_.resize(static_cast<std::size_t>(pages * options.page));
    swa_pool_ = add("swa", canary::PoolKind::swa, options.layers, swa_allocator_->num_pages());
  }
  if (options.draft_layers > 0)
    draft_pool_ = add("draft", canary::PoolKind::draft, options.draft_layers, pages);
  for (int p = 0; p < static_cast<int>(pools_.size()); ++p)
    (p == draft_pool_ ? draft_pools_ : target_pools_).push_back(p);
  if (options.host_tokens > 0) {
    std::vector<std::int64_t> bytes;
    for (const EnginePool& p : pools_) bytes.push_back(options.real_data ? p.kv.token_bytes() : 0);
    host_.emplace(pages_of(options.host_tokens, options.page), options.page, bytes);
  }
  if (options.device.type == DeviceType::cuda) {
    const auto copy = [&](std::optional<gpu::Memory>& to, const void* from, std::size_t bytes) {
      if (bytes > 0) to.emplace(options.device, from, bytes);
    };
    const auto cells = static_cast<std::size_t>(table_.num_rows() * table_.max_length());
    copy(slots_on_device_, table_.slots(0), cells * sizeof(std::int32_t));
    copy(tokens_on_device_, table_.tokens(0), cells * sizeof(std::int32_t));
    copy(swa_on_device_, full_to_swa_.data(), full_to_swa_.size() * sizeof(std::int64_t));
  }
  if (!options.watch || options.canary.mode == canary::Mode::none) return;

  canary::Options watch = options.canary;
  watch.threads = resolve_threads(options.threads);
  if (!options.real_data) watch.depth = canary::Depth::none;
  monitor_.emplace(watch);
  for (const EnginePool& p : pools_) {
    canary::PoolSpec spec;
    spec.name = p.name;
    spec.kind = p.kind;
    spec.device = options.device;
    spec.table_rows = table_.num_rows();
    spec.layout = p.kv.layout();
    spec.num_layers = p.kv.num_layers();
    if (watch.depth != canary::Depth::none) spec.buffers = p.kv.device_buffers();
    spec.num_slots = p.kv.num_slots();
    spec.null_slot = options.null_slot;
    if (p.kind == canary::PoolKind::swa) {
      spec.window = options.window;
      spec.full_to_swa = full_to_swa_;
      if (swa_on_device_) {
        spec.full_to_swa = {static_cast<const std::int64_t*>(swa_on_device_->data()),
                            full_to_swa_.size()};
      }
    }
    spec.token_offset = p.kind == canary::PoolKind::draft ? 1 : 0;
    const int pool = monitor_->add_pool(std::move(spec));
    if (watch.format == canary::Format::sglang) set_sweep_source(pool);
  }
}

Engine::~Engine() = default;

// SGLang's sweep walks the prefix tree. Slots are those of the full pool; the monitor translates.
void Engine::set_sweep_source(int pool) {
  monitor_->set_sweep_source(pool, [this](std::vector<canary::SweepEntry>& out) {
    cache_.for_each_on_device([&](RadixCache::Node n, std::int64_t page) {
      std::int64_t prev = -1;
      if (cache_.parent(n) != RadixCache::kRoot)
        prev = cache_.page(cache_.parent(n)) * options_.page + options_.page - 1;
      for (std::int64_t t = 0; t < options_.page; ++t) {
        const std::int64_t slot = page * options_.page + t;
        out.push_back({slot, cache_.position(n) + t, prev});
        prev = slot;
      }
    });
  });
}

void Engine::require_fits(const EngineOptions& o, canary::Owner owner, std::int64_t input_length,
                          std::int64_t output_length) {
  checked(o);
  const std::int64_t total = input_length + output_length;
  if (pages_of(total, o.page) > pages_of(o.pool_tokens, o.page))
    raise(errors::Page::pool_too_small, {{"request", std::to_string(owner)},
                                         {"need", std::to_string(total)},
                                         {"got", std::to_string(o.pool_tokens)}});
  // A window, what a step adds, and a page that each end begins.
  const std::int64_t swa = pages_of(o.window, o.page) + pages_of(o.decode_tokens, o.page) + 2;
  if (o.window > 0 && swa > pages_of(swa_tokens_of(o), o.page))
    raise(errors::Page::pool_too_small, {{"request", std::to_string(owner)},
                                         {"need", std::to_string(swa * o.page)},
                                         {"got", std::to_string(swa_tokens_of(o))}});
}

void Engine::submit(canary::Owner owner, RequestText text) {
  require_fits(options_, owner, text.input_length(), text.output_length());
  if (text.total_length() + 1 > table_.max_length())
    raise(errors::Page::engine_option, {{"name", "max_length"},
                                        {"want", "at least the longest request's tokens + 1, " +
                                                     std::to_string(text.total_length() + 1)},
                                        {"got", std::to_string(table_.max_length())}});
  waiting_.push_back(std::make_unique<Request>(owner, std::move(text)));
}

bool Engine::abort(canary::Owner owner) {
  const auto is_it = [owner](const RequestPtr& r) { return r->owner == owner; };
  if (const auto it = std::find_if(waiting_.begin(), waiting_.end(), is_it); it != waiting_.end()) {
    waiting_.erase(it);
  } else if (const auto at = std::find_if(running_.begin(), running_.end(), is_it);
             at != running_.end()) {
    leave(**at);
    running_.erase(at);
  } else {
    return false;
  }
  ++counters_.aborted;
  return true;
}

bool Engine::preempt(canary::Owner owner) {
  const auto at = std::find_if(running_.begin(), running_.end(), [owner](const RequestPtr& r) {
    return r->owner == owner && r->phase == Request::Phase::running;
  });
  if (at == running_.end()) return false;
  preempt(at);
  return true;
}

void Engine::later(std::uint64_t steps, std::function<void()> landing) {
  later_.emplace(step_ + steps, std::move(landing));
}

void Engine::land_due() {
  while (!transfers_.empty() && transfers_.front().lands <= step_) {
    Transfer t = std::move(transfers_.front());
    transfers_.pop_front();
    land(t);
  }
  while (!later_.empty() && later_.begin()->first <= step_) {
    const auto landing = std::move(later_.begin()->second);
    later_.erase(later_.begin());
    landing();
  }
}

bool Engine::step() {
  if (waiting_.empty() && running_.empty()) return false;
  if (injector_ != nullptr) injector_->step_begin(*this);
  land_due();
  schedule();
  forward();
  after_forward();
  ++step_;
  return true;
}

void Engine::drain() {
  while (!transfers_.empty() || !later_.empty()) {
    land_due();
    ++step_;
  }
  send();
  watched([](canary::Monitor& m) { m.flush(); });
  read_violations();
  if (injector_ != nullptr) injector_->drained(*this);
}

canary::Batch Engine::device_batch(bool draft) const {
  canary::Batch b;
  b.pools = draft ? draft_pools_ : target_pools_;
  b.rows = batch_.rows;
  b.prefix_lens = batch_.prefix_lens;
  b.extend_lens = batch_.extend_lens;
  b.owners = batch_.owners;
  b.req_to_token = slots_view();
  b.input_ids = draft ? batch_.draft_ids : batch_.input_ids;
  b.positions = batch_.positions;
  b.out_cache_loc = batch_.out_cache_loc;
  b.expected_tokens = tokens_view();
  b.valid_lens = batch_.valid_lens;
  return b;
}

TensorView Engine::slots_view() const {
  TensorView v = table_.slots_view();
  if (!slots_on_device_) return v;
  v.data = slots_on_device_->data();
  v.device = options_.device;
  return v;
}

TensorView Engine::tokens_view() const {
  TensorView v = table_.tokens_view();
  if (!tokens_on_device_) return v;
  v.data = tokens_on_device_->data();
  v.device = options_.device;
  return v;
}

void Engine::send() {
  if (!slots_on_device_) return;
  for (const EnginePool& p : pools_) p.kv.send();
  for (const auto& [row, begin, end] : std::exchange(changed_cells_, {})) {
    const auto copy = [&](const gpu::Memory& to, const std::int32_t* from) {
      gpu::copy_to_device(options_.device,
                          static_cast<std::int32_t*>(to.data()) + row * table_.max_length() + begin,
                          from + begin,
                          static_cast<std::size_t>(end - begin) * sizeof(std::int32_t), {});
    };
    copy(*slots_on_device_, table_.slots(row));
    copy(*tokens_on_device_, table_.tokens(row));
  }
  if (!swa_on_device_) return;
  gpu::copy_to_device(options_.device, swa_on_device_->data(), full_to_swa_.data(),
                      full_to_swa_.size() * sizeof(std::int64_t), {});
}

// The target's forward, then the draft's over the same slots.
void Engine::forward() {
  if (injector_ != nullptr) injector_->before_head(*this, batch_);
  send();
  watched([&](canary::Monitor& m) { m.begin_step(device_batch(false)); });
  if (injector_ != nullptr) injector_->before_write(*this, batch_);
  write_kv(false);
  if (injector_ != nullptr) injector_->after_write(*this, batch_);
  send();
  watched([&](canary::Monitor& m) { m.end_step(device_batch(false)); });
  if (draft_pool_ >= 0) {
    watched([&](canary::Monitor& m) { m.begin_step(device_batch(true)); });
    write_kv(true);
    send();
    watched([&](canary::Monitor& m) { m.end_step(device_batch(true)); });
  }
  read_violations();
  if (injector_ != nullptr) injector_->after_tail(*this, batch_);
}

void Engine::write_kv(bool draft) {
  if (!options_.real_data) return;
  std::vector<std::int64_t> begins;  // of each request's tokens in the flat arrays
  std::int64_t n = 0;
  for (std::size_t i = 0; i < in_batch_.size(); ++i) {
    begins.push_back(n);
    n += batch_.extend_lens[i];
  }
  constexpr std::int64_t kGrain = 512;  // tokens
  parallel_for(resolve_threads(options_.threads), n, kGrain,
               [&](std::int64_t begin, std::int64_t end) {
                 auto request = static_cast<std::size_t>(
                     std::upper_bound(begins.begin(), begins.end(), begin) - begins.begin() - 1);
                 for (std::int64_t i = begin; i < end; ++i) {
                   while (request + 1 < begins.size() && begins[request + 1] <= i) ++request;
                   const Request& r = *in_batch_[request];
                   write_token_kv(r, r.length + i - begins[request],
                                  batch_.write_loc[static_cast<std::size_t>(i)], draft);
                 }
               });
  // Padding rows write somewhere: into the null slot, where the pool allows it.
  if (options_.null_slot == canary::NullSlot::scratch && batch_.rows.size() > in_batch_.size()) {
    for (const EnginePool& p : pools_) {
      if ((p.kind == canary::PoolKind::draft) == draft)
        model_write(p.kv, 0, mix(step_), mix(~step_));
    }
  }
}

void Engine::write_token_kv(const Request& r, std::int64_t position, std::int64_t slot,
                            bool draft) {
  if (slot < 0 || slot >= pools_[0].kv.num_slots()) return;
  const std::uint64_t junk = mix(step_, static_cast<std::uint64_t>(slot));
  if (draft) {
    model_write(pools_[static_cast<std::size_t>(draft_pool_)].kv, slot,
                r.text.prefix_state(position + 1), junk);
    return;
  }
  const std::uint64_t state = r.text.prefix_state(position);
  model_write(pools_[0].kv, slot, state, junk);
  if (swa_pool_ < 0) return;
  const std::int64_t swa = full_to_swa_[static_cast<std::size_t>(slot)];
  if (swa > 0) model_write(pools_[static_cast<std::size_t>(swa_pool_)].kv, swa, state, junk);
}

void Engine::read_violations() {
  if (!monitor_) return;
  std::vector<canary::Violation> found;
  watched([&](canary::Monitor& m) {
    m.wait();  // so that a replay is the same on every device
    found = m.poll();
  });
  for (const canary::Violation& v : found) {
    const int fault = faults_.explain(v, step_);
    ++(fault < 0 ? counters_.false_alarms : counters_.explained_violations);
    if (on_violation) on_violation(v, fault);
  }
}

}  // namespace serinus::engine
