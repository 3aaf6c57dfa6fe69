// Ranks of one model compare what they hold: with as many ranks as there are, the one that holds
// something else is named, and nobody else.
#include "agreement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <serinus/error.h>

#include "peer.h"

namespace distributed {
namespace {

using namespace testing;
using serinus::canary::Reason;

struct Rank {
  std::vector<std::vector<Disagreement>> steps;  // what each step said
  Reason told = Reason::none;                    // what its monitor was told
};

using Inject = std::function<void(int rank, int step, Node& node, std::vector<Request>& requests)>;

/// Each rank a thread of its own, five requests, six steps.
std::vector<Rank> run(int ranks, const Inject& inject) {
  std::vector<std::vector<int>> sockets = connect_ranks(ranks);
  std::vector<Rank> results(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      SocketTransport transport(rank, sockets[static_cast<std::size_t>(rank)], kPatient);
      Engine engine(transport);
      std::vector<Request> requests;
      for (const Owner id : {1u, 2u, 3u, 4u, 5u}) {
        requests.push_back({id, prompt_of(30 + 10 * id, id), {}, 0});
      }
      std::vector<Request*> batch;
      for (Request& r : requests) {
        ASSERT_TRUE(engine.node.reserve(r, 100));
        batch.push_back(&r);
      }
      engine.node.forward(batch);
      Rank& result = results[static_cast<std::size_t>(rank)];
      for (int step = 0; step < 6; ++step) {
        inject(rank, step, engine.node, requests);
        result.steps.push_back(agree(engine.node, transport, {batch.data(), batch.size()}));
        for (Request* r : batch) r->tokens.push_back(sample(r->tokens));
        engine.node.forward(batch);
      }
      for (const serinus::canary::Violation& v : engine.node.poll()) result.told |= v.reasons;
    });
  }
  for (std::thread& t : threads) t.join();
  return results;
}

TEST(Agreement, NobodyDisagrees) {
  for (const int ranks : {1, 2, 5}) {
    for (const Rank& r : run(ranks, [](int, int, Node&, std::vector<Request>&) {})) {
      for (const auto& step : r.steps) EXPECT_TRUE(step.empty()) << step.front().why;
      EXPECT_EQ(names_of(r.told), "none");
    }
  }
}

/// All ranks say so in the same words: request 2, rank `faulty`, from step 3 on.
void expect_named(const std::vector<Rank>& ranks, int faulty, const std::string& why) {
  for (const Rank& r : ranks) {
    for (std::size_t step = 0; step < r.steps.size(); ++step) {
      ASSERT_EQ(r.steps[step].size(), step < 3 ? 0u : 1u) << "step " << step;
      if (step < 3) continue;
      const Disagreement& d = r.steps[step].front();
      EXPECT_EQ(d.request, 2u);
      EXPECT_EQ(d.ranks, std::vector{faulty}) << d.why;
      EXPECT_EQ(d.why, ranks[0].steps[step].front().why);
      if (step > 3) continue;  // later, further reasons were found
      EXPECT_EQ(d.why, "rank " + std::to_string(faulty) + " " + why);
    }
    EXPECT_TRUE(any(r.told & Reason::digest_differs_across_ranks));
  }
}

TEST(Agreement, NamesTheRankThatLoadedOnePageFewer) {
  for (const int ranks : {2, 3, 4}) {
    for (int faulty = 0; faulty < ranks; ++faulty) {
      const std::vector<Rank> said =
          run(ranks, [faulty](int rank, int step, Node& node, std::vector<Request>& requests) {
            if (rank == faulty && step == 3) lose_page(node, requests[1], 1);
          });
      expect_named(said, faulty, "finds in its own pool: stale");
    }
  }
}

TEST(Agreement, NamesTheRankThatHoldsAnothersPage) {
  for (const int ranks : {2, 3}) {
    for (int faulty = 0; faulty < ranks; ++faulty) {
      const std::vector<Rank> said =
          run(ranks, [faulty](int rank, int step, Node& node, std::vector<Request>& requests) {
            if (rank == faulty && step == 3) take_page_of(node, requests[1], requests[4], 1);
          });
      expect_named(said, faulty, "finds in its own pool: token+chain");
    }
  }
}

// Where each rank is right by its own lights: the prompt itself differs.
TEST(Agreement, VotesWhereEachRankIsContentWithItself) {
  const auto prompt_differs = [](int rank, int step, Node& node, std::vector<Request>& requests) {
    if (rank != 0 || step != 0) return;
    Request& r = requests[2];
    node.release(r);
    r.tokens[7] ^= 1;
    ASSERT_TRUE(node.reserve(r, 100));
    Request* batch[] = {&r};
    node.forward(batch);
  };
  for (const Rank& r : run(3, prompt_differs)) {
    ASSERT_EQ(r.steps[0].size(), 1u);
    EXPECT_EQ(r.steps[0][0].ranks, std::vector{0}) << r.steps[0][0].why;
    EXPECT_EQ(r.steps[0][0].why, "rank 0 holds other tokens than most");
  }
  for (const Rank& r : run(2, prompt_differs)) {
    ASSERT_EQ(r.steps[0].size(), 1u);
    EXPECT_EQ(r.steps[0][0].ranks, (std::vector{0, 1})) << "one against one: nobody can tell";
  }
}

/// The request's pages again, with other contents or the same.
void prefill_again(Node& node, Request& r, bool other_prompt) {
  node.release(r);
  if (other_prompt) r.tokens[7] ^= 1;
  ASSERT_TRUE(node.reserve(r, 100));
  Request* batch[] = {&r};
  node.forward(batch);
}
void bend_a_byte(Node& node, const Request& r) {
  node.part_of(0, 0, r.pages[0], 0, 1).data[0] ^= 1;
}

// What was wrong with a request in an earlier life, or is wrong with its bytes, is not why its
// tokens would differ.
TEST(Agreement, DoesNotNameARankForSomethingElse) {
  const auto had_a_bad_life = [](int rank, int step, Node& node, std::vector<Request>& requests) {
    if (rank == 0 && step == 0) {
      bend_a_byte(node, requests[2]);
      EXPECT_NE(node.verify(requests[2]), Reason::none);
      prefill_again(node, requests[2], false);
    }
    if (rank == 1 && step == 2) prefill_again(node, requests[2], true);
  };
  const auto has_damaged_bytes = [](int rank, int step, Node& node,
                                    std::vector<Request>& requests) {
    if (rank == 0 && step == 2) bend_a_byte(node, requests[2]);
    if (rank == 1 && step == 2) prefill_again(node, requests[2], true);
  };
  for (const Inject& inject : {Inject(had_a_bad_life), Inject(has_damaged_bytes)}) {
    for (const Rank& r : run(3, inject)) {
      EXPECT_TRUE(r.steps[1].empty());
      ASSERT_EQ(r.steps[2].size(), 1u);
      EXPECT_EQ(r.steps[2][0].why, "rank 1 holds other tokens than most");
    }
  }
}

// Two ranks are wrong, each in its own way.
TEST(Agreement, NamesBoth) {
  const auto inject = [](int rank, int step, Node& node, std::vector<Request>& requests) {
    if (rank == 0 && step == 2) lose_page(node, requests[2], 1);
    if (rank == 1 && step == 2) prefill_again(node, requests[2], true);
  };
  for (const Rank& r : run(4, inject)) {
    ASSERT_EQ(r.steps[2].size(), 1u);
    EXPECT_EQ(r.steps[2][0].ranks, (std::vector{0, 1})) << r.steps[2][0].why;
  }
}

TEST(Agreement, RefusesAnotherNumberOfRequests) {
  std::vector<std::vector<int>> sockets = connect_ranks(2);
  std::vector<std::string> said(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      SocketTransport transport(rank, sockets[static_cast<std::size_t>(rank)], kPatient);
      Engine engine(transport);
      std::vector<Request> requests = {{1, prompt_of(20, 1), {}, 0}, {2, prompt_of(20, 2), {}, 0}};
      std::vector<Request*> batch;
      for (Request& r : std::span(requests).first(rank == 0 ? 2 : 1)) {
        engine.node.reserve(r, 20);
        batch.push_back(&r);
      }
      engine.node.forward(batch);
      try {
        agree(engine.node, transport, {batch.data(), batch.size()});
      } catch (const serinus::RuntimeError& e) {
        said[static_cast<std::size_t>(rank)] = e.id() + " " + e.what();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(said[0], "SRN8003 requests of rank 1's message is 1, not 2");
  EXPECT_TRUE(said[1].starts_with("SRN8003 requests of rank 0's message")) << said[1];
}

/// Says a reason that there is not, when the ranks tell each other what they found.
class LyingTransport : public SocketTransport {
 public:
  using SocketTransport::SocketTransport;
  void all_gather(Segment mine, Segment all) override {
    if (gathers_++ == 1) mine.data[sizeof(std::uint64_t) + 1] |= 1 << 2;  // bit 10 of the first
    SocketTransport::all_gather(mine, all);
  }

 private:
  int gathers_ = 0;
};

TEST(Agreement, RefusesAReasonThatThereIsNot) {
  std::vector<std::vector<int>> sockets = connect_ranks(2);
  std::vector<std::string> said(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const std::vector<int>& mine = sockets[static_cast<std::size_t>(rank)];
      std::unique_ptr<SocketTransport> transport =
          rank == 1 ? std::make_unique<LyingTransport>(rank, mine, kPatient)
                    : std::make_unique<SocketTransport>(rank, mine, kPatient);
      Engine engine(*transport);
      Request r{1, prompt_of(20, static_cast<unsigned>(rank)), {}, 0};  // they disagree
      engine.node.reserve(r, 20);
      Request* batch[] = {&r};
      engine.node.forward(batch);
      try {
        agree(engine.node, *transport, {batch, 1});
      } catch (const serinus::RuntimeError& e) {
        said[static_cast<std::size_t>(rank)] = e.id() + " " + e.what();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(said[0], "SRN8003 reasons of rank 1's message is 1024, not in [0, 1023]");
}

TEST(Agreement, EndsWhenARankIsGone) {
  std::vector<std::vector<int>> sockets = connect_ranks(3);
  std::vector<std::string> ids(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      SocketTransport transport(rank, sockets[static_cast<std::size_t>(rank)], kPatient);
      Engine engine(transport);
      Request r{1, prompt_of(20, 1), {}, 0};
      engine.node.reserve(r, 20);
      Request* batch[] = {&r};
      engine.node.forward(batch);
      try {
        agree(engine.node, transport, {batch, 1});
      } catch (const serinus::RuntimeError& e) {
        ids[static_cast<std::size_t>(rank)] = e.id();
      }
    });
  }
  {
    const SocketTransport gone(2, sockets[2], kPatient);
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(ids, (std::vector<std::string>{"SRN8001", "SRN8001"}));
}

TEST(AllGather, IsInTheOrderOfRanksAndAnySize) {
  for (const std::int64_t bytes : {std::int64_t{0}, std::int64_t{1}, std::int64_t{3} << 20}) {
    std::vector<std::vector<int>> sockets = connect_ranks(4);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 4; ++rank) {
      threads.emplace_back([&, rank] {
        SocketTransport transport(rank, sockets[static_cast<std::size_t>(rank)], kPatient);
        std::vector<std::uint8_t> mine(static_cast<std::size_t>(bytes),
                                       static_cast<std::uint8_t>(rank + 10));
        std::vector<std::uint8_t> all(mine.size() * 4), want;
        for (std::uint8_t r = 10; r < 14; ++r) want.insert(want.end(), mine.size(), r);
        transport.all_gather(segment_of(std::span(mine)), segment_of(std::span(all)));
        EXPECT_EQ(all, want);
      });
    }
    for (std::thread& t : threads) t.join();
  }
}

}  // namespace
}  // namespace distributed
