// KV that goes from a prefilling process to a decoding one: each fault is caught as what it is, and
// whatever the peer does instead, this side ends with an error that has a page, soon, with nothing
// reported as verified that was not.
#include "transfer.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <random>

#include <serinus/error.h>

#include "peer.h"

namespace distributed {
namespace {

using namespace testing;

void prefill(SocketTransport& control, Transport& transport, Fault fault) {
  Engine engine(control);
  const bool sound =
      Prefill(engine.node, {transport, transport, 1}, fault, say_nothing).run(testing::prompts());
  if (!sound) throw std::runtime_error("refused");
}

// ---------------------------------------------------------------- faults

class Session : public ::testing::TestWithParam<Fault> {};

TEST_P(Session, IsJudgedAsItShouldBe) {
  const Fault fault = GetParam();
  PeerProcess peer([fault](SocketTransport& t) { prefill(t, t, fault); });
  Engine engine(peer.transport());
  Decode decode(engine.node, {peer.transport(), peer.transport(), 0}, fault, say_nothing);
  const Decode::Outcome outcome = decode.run(24);
  EXPECT_TRUE(as_expected(outcome, fault));
  EXPECT_EQ(outcome.missed, 0);
  EXPECT_EQ(outcome.imagined, 0);
  EXPECT_EQ(outcome.damaged > 0, fault != Fault::none);
  // After a refusal the second prefill is good; the abandoned request alone never comes.
  EXPECT_EQ(outcome.verified, fault == Fault::stale_retry ? 90 + 80 : 90 + 75 + 80);
  EXPECT_EQ(peer.wait(), 0);
  // A session is not judged by the name that it was given.
  for (const FaultEntry& other : faults()) {
    if (other.reason == entry_of(fault).reason) continue;
    EXPECT_FALSE(as_expected(outcome, other.fault)) << other.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Faults, Session, ::testing::ValuesIn([] {
                           std::vector<Fault> all;
                           for (const FaultEntry& f : faults()) all.push_back(f.fault);
                           return all;
                         }()),
                         [](const auto& info) { return std::string(entry_of(info.param).name); });

// A pool that is full refuses a request, and takes those that it has room for.
TEST(Verdict, RefusesWhatThereIsNoRoomFor) {
  PeerProcess peer([](SocketTransport& t) {
    Engine engine(t);
    const std::vector<std::vector<std::uint32_t>> some = {prompt_of(90, 1), prompt_of(200, 2),
                                                          prompt_of(40, 3)};
    int refused = 0;
    const Say say = [&](const std::string& line) {
      refused += line == "request 2 was refused (no room for 200 tokens)" ? 1 : 0;
    };
    if (Prefill(engine.node, {t, t, 1}, Fault::none, say).run(some) || refused != 2) _exit(2);
  });
  const std::unique_ptr<DataPlane> plane = open_data_plane(peer.transport(), kPatient);
  constexpr std::int64_t kPages = 16;  // of 16 slots, one of them for the null slot
  Node node(Model{}, kPages, 1, plane->memory());
  const Decode::Outcome outcome =
      Decode(node, {peer.transport(), peer.transport(), 0}, Fault::none, say_nothing).run(4);
  EXPECT_EQ(outcome.verified, 90 + 40);
  EXPECT_TRUE(as_expected(outcome, Fault::none));
  EXPECT_EQ(peer.wait(), 0);
}

// Where a prompt has no fourth page, none can be torn: that is said before anything is sent.
TEST(Faults, NeedPromptsThatAreLongEnough) {
  PeerProcess peer([](SocketTransport&) { pause(); });
  Engine engine(peer.transport());
  const Link link{peer.transport(), peer.transport(), 0};
  const auto said_of = [&](Fault fault, std::vector<std::vector<std::uint32_t>> some) {
    try {
      Prefill(engine.node, link, fault, say_nothing).run(some);
    } catch (const std::invalid_argument& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  const std::vector<std::uint32_t> fine = prompt_of(100, 1);
  EXPECT_EQ(said_of(Fault::torn_page, {fine, prompt_of(64, 2)}),
            "the prompt of request 2 must have at least 65 tokens for the fault torn_page, got 64");
  EXPECT_EQ(
      said_of(Fault::late_write, {fine, prompt_of(16, 2)}),
      "the prompt of request 2 must have at least 17 tokens for the fault late_write, got 16");
  EXPECT_EQ(
      said_of(Fault::wrong_slots, {fine, prompt_of(32, 2)}),
      "the prompt of request 2 must have at least 33 tokens for the fault wrong_slots, got 32");
  EXPECT_EQ(
      said_of(Fault::missing_layer, {fine}),
      "the prompt of request 2 must have at least 1 tokens for the fault missing_layer, got 0");
}

TEST(Verdict, ComesBeforeTheFirstToken) {
  PeerProcess peer([](SocketTransport& t) { prefill(t, t, Fault::missing_layer); });
  Engine engine(peer.transport());
  Decode decode(engine.node, {peer.transport(), peer.transport(), 0}, Fault::none, say_nothing);
  const Decode::Outcome outcome = decode.run(0);
  // Two steps after each verdict, for those alone that are sound by then: 1 of 1, 1 of 2 (refused),
  // 2 of 2, 3 of 3.
  EXPECT_EQ(outcome.decoded, 2 * (1 + 1 + 2 + 3));
  for (const serinus::canary::Violation& v : outcome.violations) {
    EXPECT_LT(v.stored_position, 75) << "a token that was decoded";
  }
}

// ---------------------------------------------------------------- lost, silent, hostile

/// Decodes what the peer sends, which must end in an error of the family.
struct Ended {
  std::string id, message;
  Decode::Outcome outcome;
};
Ended decode_until_error(PeerProcess& peer) {
  Engine engine(peer.transport());
  Decode decode(engine.node, {peer.transport(), peer.transport(), 0}, Fault::none, say_nothing);
  Ended ended;
  try {
    decode.run(2);
    ended.id = "none";
  } catch (const serinus::RuntimeError& e) {
    ended.id = e.id();
    ended.message = e.what();
    EXPECT_EQ(serinus::find_error(e.what())->id, e.id());
  }
  ended.outcome = decode.outcome();
  return ended;
}

TEST(LostPeer, WhereverItDies) {
  int sends = 0;
  std::int64_t verified_before = 0;
  for (bool finished = false; !finished; sends += 7) {
    PeerProcess peer([sends](SocketTransport& t) {
      BentTransport dying(t, [sends](int n, auto) {
        if (n == sends) raise(SIGKILL);
      });
      prefill(t, dying, Fault::none);
    });
    const Ended ended = decode_until_error(peer);
    finished = ended.id == "none";
    EXPECT_EQ(ended.id, finished ? "none" : "SRN8001") << ended.message << " after " << sends;
    EXPECT_TRUE(ended.outcome.violations.empty()) << "half a transfer is no fault of the bytes";
    EXPECT_GE(ended.outcome.verified, verified_before);
    EXPECT_TRUE(ended.outcome.verified == 0 || ended.outcome.verified == 90 ||
                ended.outcome.verified == 165 || ended.outcome.verified == 245)
        << "whole requests alone count: " << ended.outcome.verified;
    verified_before = ended.outcome.verified;
    EXPECT_EQ(peer.wait(), finished ? 0 : -1);
  }
  EXPECT_GT(sends, 70);
  EXPECT_EQ(verified_before, 245);
}

TEST(LostPeer, ADecoderThatDies) {
  for (const int sends : {0, 1, 2, 3}) {
    PeerProcess peer([sends](SocketTransport& t) {
      BentTransport dying(t, [sends](int n, auto) {
        if (n == sends) raise(SIGKILL);
      });
      Engine engine(t);
      Decode(engine.node, {dying, dying, 1}, Fault::none, say_nothing).run(1);
    });
    Engine engine(peer.transport());
    Prefill prefill(engine.node, {peer.transport(), peer.transport(), 0}, Fault::none, say_nothing);
    try {
      prefill.run(testing::prompts());
      ADD_FAILURE() << "ran to its end with a dead peer";
    } catch (const serinus::RuntimeError& e) {
      EXPECT_EQ(e.id(), "SRN8001") << e.what();
    }
  }
}

TEST(SilentPeer, IsGivenUpByTheDeadline) {
  for (const int sends : {0, 1, 5, 40}) {
    PeerProcess peer(
        [sends](SocketTransport& t) {
          BentTransport stopping(t, [sends](int n, auto) {
            if (n == sends) pause();
          });
          prefill(t, stopping, Fault::none);
        },
        Milliseconds(150));
    const Ended ended = decode_until_error(peer);
    EXPECT_EQ(ended.id, "SRN8002") << ended.message;
    EXPECT_LE(ended.outcome.verified, 90);
  }
}

TEST(SilentPeer, TricklesForEver) {
  PeerProcess peer(
      [](SocketTransport& t) {
        std::uint8_t byte = 0x31;
        for (;;) {
          t.send(1, std::vector{Segment{&byte, 1}});
          usleep(20000);
        }
      },
      Milliseconds(200));
  EXPECT_EQ(decode_until_error(peer).id, "SRN8002") << "the deadline is for the call, not a byte";
}

TEST(SilentPeer, DoesNotTakeWhatIsSent) {
  PeerProcess peer([](SocketTransport&) { pause(); }, Milliseconds(100));
  std::vector<std::uint8_t> much(std::size_t{64} << 20);
  try {
    peer.transport().send(0, std::vector{segment_of(std::span(much))});
    ADD_FAILURE() << "64 MiB went into a socket that nobody reads";
  } catch (const serinus::RuntimeError& e) {
    EXPECT_EQ(e.id(), "SRN8002");
  }
  // Half of something is on its way: what would follow is not a message any more.
  try {
    send_message(peer.transport(), 0, {});
    ADD_FAILURE() << "a broken transport went on";
  } catch (const serinus::RuntimeError& e) {
    EXPECT_EQ(e.id(), "SRN8001");
    EXPECT_NE(std::string(e.what()).find("an earlier call"), std::string::npos) << e.what();
  }
}

TEST(StoppedRank, IsEndedAfterItsDeadlines) {
  const int worst = run_ranks(2, Milliseconds(100), [](SocketTransport& t) {
    if (t.rank() == 0) raise(SIGSTOP);
    return 0;
  });
  EXPECT_EQ(worst, kRankFailed);
}

TEST(HostilePeer, SendsRandomBytes) {
  for (const unsigned seed : {1u, 2u, 3u, 4u, 5u}) {
    PeerProcess peer([seed](SocketTransport& t) {
      std::mt19937 random(seed);
      std::vector<std::uint8_t> bytes(4096);
      for (std::uint8_t& b : bytes) b = static_cast<std::uint8_t>(random());
      for (;;) t.send(1, std::vector{segment_of(std::span(bytes))});
    });
    const Ended ended = decode_until_error(peer);
    EXPECT_EQ(ended.id, "SRN8003") << ended.message;
    EXPECT_EQ(ended.outcome.verified, 0);
  }
}

/// Says hello as an engine with such a pool would.
void greet_as(Transport& t, const serinus::canary::Options& options,
              const serinus::canary::PoolSpec& pool) {
  greet(t, 1, greeting_of(options, pool));
}
serinus::canary::PoolSpec pool_as_here() {
  serinus::canary::PoolSpec pool;
  pool.layout = layout_of(Model{});
  pool.num_layers = Model{}.layers;
  return pool;
}

TEST(HostilePeer, HasAnotherLayout) {
  using serinus::canary::Options, serinus::canary::PoolSpec;
  const auto greeted_with = [](void (*change)(Options&, PoolSpec&)) {
    PeerProcess peer([change](SocketTransport& t) {
      Options options = watch_options();
      PoolSpec pool = pool_as_here();
      change(options, pool);
      greet_as(t, options, pool);
    });
    return decode_until_error(peer);
  };
  const auto none = [](Options&, PoolSpec&) {};
  EXPECT_EQ(greeted_with(none).id, "SRN8001") << "it greets well, and goes";
  struct Case {
    void (*change)(Options&, PoolSpec&);
    const char* says;
  };
  const Case cases[] = {
      {[](Options&, PoolSpec& p) { ++p.num_layers; }, "layers: 4 here, 5 there"},
      {[](Options& o, PoolSpec&) { o.depth = serinus::canary::Depth::partial; },
       "depth: all here, partial there"},
      {[](Options& o, PoolSpec&) { o.source_digests = false; }, "source digests: 1 here, 0 there"},
      {[](Options&, PoolSpec& p) { p.layout.page_size = 32; }, "page size: 16 here, 32 there"},
      {[](Options&, PoolSpec& p) { p.layout.page_bytes.pop_back(); }, "buffers a layer: 3 here, 2"},
      // As long, and yet not the same.
      {[](Options&, PoolSpec& p) { p.layout.segments[0].name = "v.head0"; }, "segments: those of"},
      {[](Options&, PoolSpec& p) { std::swap(p.layout.segments[0], p.layout.segments[4]); },
       "segments: those of"},
      // The same segments, at other places.
      {[](Options&, PoolSpec& p) { p.layout.segments[0].offset += 2; },
       "where the bytes of a token"},
      {[](Options&, PoolSpec& p) { p.layout.segments[0].token_stride *= 4; },
       "where the bytes of a token"},
  };
  for (const Case& c : cases) {
    const Ended ended = greeted_with(c.change);
    EXPECT_EQ(ended.id, "SRN8004");
    EXPECT_NE(ended.message.find(c.says), std::string::npos) << ended.message;
  }
}

// Each number of each message, beyond what is possible: refused by name, before anything happens.
TEST(HostilePeer, NamesImpossibleNumbers) {
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
  const Message offer{.kind = Kind::offer, .request = 1, .transfer = 9, .count = 40};
  const Message put{.kind = Kind::put, .request = 1, .transfer = 9, .count = 3, .end = 4096};
  const Message records{.kind = Kind::records, .request = 1, .transfer = 9, .count = 40};
  const Message done{.kind = Kind::done, .request = 1, .transfer = 9};
  struct Case {
    Message message;
    void (*change)(Message&);
    const char* field;
  };
  const Case cases[] = {
      {offer, [](Message& m) { m.magic ^= 1; }, "magic"},
      {offer, [](Message& m) { m.kind = static_cast<Kind>(1000); }, "kind"},
      {offer, [](Message& m) { m.kind = Kind::verdict; }, "kind"},
      {offer, [](Message& m) { m.kind = Kind::hello; }, "kind"},
      {offer, [](Message& m) { m.request = 0; }, "request"},
      {offer, [](Message& m) { m.request = 4000000000u; }, "request"},
      {offer, [](Message& m) { m.count = kMost; }, "count"},
      {offer, [](Message& m) { m.count = -1; }, "count"},
      {offer, [](Message& m) { m.count = 0; }, "count"},
      {offer, [](Message& m) { m.transfer = 10; }, "request"},
      {offer, [](Message& m) { m.request = 2; }, "transfer"},
      {put, [](Message& m) { m.transfer = 8; }, "transfer"},
      {put, [](Message& m) { m.request = 2; }, "request"},
      {put, [](Message& m) { m.layer = 4; }, "layer"},
      {put, [](Message& m) { m.layer = -1; }, "layer"},
      {put, [](Message& m) { m.buffer = 3; }, "buffer"},
      {put, [](Message& m) { m.buffer = -kMost; }, "buffer"},
      {put, [](Message& m) { m.first = 3; }, "first"},
      {put, [](Message& m) { m.first = kMost; }, "first"},
      {put, [](Message& m) { m.count = 4; }, "count"},
      {put, [](Message& m) { m.first = 2, m.count = kMost; }, "count"},
      {put, [](Message& m) { m.begin = -1; }, "begin"},
      {put, [](Message& m) { m.begin = 4096; }, "begin"},
      {put, [](Message& m) { m.end = 4097; }, "end"},
      {put, [](Message& m) { m.end = std::numeric_limits<std::int64_t>::max(); }, "end"},
      {put, [](Message& m) { m.begin = 100, m.end = 100; }, "end"},
      {records, [](Message& m) { m.first = 1; }, "first"},
      {records, [](Message& m) { m.first = -1; }, "first"},
      {records, [](Message& m) { m.count = 41; }, "count"},
      {records, [](Message& m) { m.count = kMost; }, "count"},
      {records, [](Message& m) { m.transfer = 0; }, "transfer"},
      {done, [](Message& m) { m.transfer = 8; }, "transfer"},
      {done, [](Message& m) { m.kind = Kind::cancel, m.transfer = 8; }, "transfer"},
  };
  for (const Case& c : cases) {
    PeerProcess peer([&](SocketTransport& t) {
      greet_as(t, watch_options(), pool_as_here());
      send_message(t, 1, offer);
      std::vector<std::uint32_t> tokens(40, 7);
      t.send(1, std::vector{segment_of(std::span(tokens))});
      Message bad = c.message;
      c.change(bad);
      send_message(t, 1, bad);
      pause();
    });
    const Ended ended = decode_until_error(peer);
    EXPECT_EQ(ended.id, "SRN8003") << c.field << ": " << ended.message;
    EXPECT_TRUE(ended.message.starts_with(std::string(c.field) + " of rank 0's message"))
        << "wanted " << c.field << ": " << ended.message;
    EXPECT_EQ(ended.outcome.verified, 0);
  }
}

// A token that is negative as an int32 would count as not known, and any record would do for it.
TEST(HostilePeer, OffersATokenThatNobodyHas) {
  for (const std::uint32_t token : {0xFFFFFFFFu, 0x80000007u}) {
    PeerProcess peer([token](SocketTransport& t) {
      greet_as(t, watch_options(), pool_as_here());
      send_message(t, 1, {.kind = Kind::offer, .request = 1, .transfer = 9, .count = 40});
      std::vector<std::uint32_t> tokens(40, 7);
      tokens[30] = token;
      t.send(1, std::vector{segment_of(std::span(tokens))});
      pause();
    });
    const Ended ended = decode_until_error(peer);
    EXPECT_EQ(ended.id, "SRN8003") << ended.message;
    EXPECT_TRUE(ended.message.starts_with("token of rank 0's message")) << ended.message;
  }
}

// A whole session, one bit of which is bent anywhere: an error of the family, a refusal, or nothing
// where the bit did not matter; never a crash, a hang, or damage that nobody names.
TEST(HostilePeer, BendsAnyBit) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    PeerProcess peer(
        [seed](SocketTransport& t) {
          std::mt19937 random(seed);
          const int at = static_cast<int>(random() % 90);
          BentTransport bent(t, [&](int n, std::span<const Segment> segments) {
            const Segment& s = segments[random() % segments.size()];
            if (n == at && s.bytes > 0) {
              s.data[random() % static_cast<std::uint64_t>(s.bytes)] ^=
                  static_cast<std::uint8_t>(1u << random() % 8);
            }
          });
          prefill(t, bent, Fault::none);
        },
        Milliseconds(300));
    const Ended ended = decode_until_error(peer);
    EXPECT_TRUE(ended.id == "none" || ended.id.starts_with("SRN800")) << seed << ended.message;
    if (ended.id == "none") {
      EXPECT_EQ(ended.outcome.missed, 0) << seed;
      EXPECT_EQ(ended.outcome.imagined, 0) << seed;
    }
  }
}

TEST(HostilePeer, AnswersAPrefillWithNonsense) {
  for (const auto change :
       {+[](Message& m) { m.kind = Kind::put; }, +[](Message& m) { m.transfer = 77; },
        +[](Message& m) { m.count = -1; }, +[](Message& m) { m.count = 1 << 30; },
        +[](Message& m) { m.request = 55; }, +[](Message& m) { m.count = 1; },
        +[](Message& m) { m.value = 8; }, +[](Message& m) { m.count = 0, m.value = ~0ull; }}) {
    PeerProcess peer([&](SocketTransport& t) {
      BentTransport bent(t, [&](int n, std::span<const Segment> segments) {
        Message m;
        if (n != 1) return;  // 0 is the greeting
        std::memcpy(&m, segments[0].data, sizeof(m));
        change(m);
        std::memcpy(segments[0].data, &m, sizeof(m));
      });
      Engine engine(t);
      Decode(engine.node, {bent, bent, 1}, Fault::none, say_nothing).run(1);
    });
    Engine engine(peer.transport());
    Prefill prefill(engine.node, {peer.transport(), peer.transport(), 0}, Fault::none, say_nothing);
    try {
      prefill.run(testing::prompts());
      ADD_FAILURE() << "believed it";
    } catch (const serinus::RuntimeError& e) {
      EXPECT_EQ(e.id(), "SRN8003") << e.what();
    }
  }
}

}  // namespace
}  // namespace distributed
