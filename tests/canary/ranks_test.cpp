// What ranks and the two sides of a transfer compare; ranks as threads and as processes.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include <serinus/canary_ranks.h>
#include <serinus/error.h>

#include "rig.h"

namespace serinus::canary {
namespace {

using testing::Rig;

/// One rank of a model: the same two requests, in slots of its own.
struct Rank {
  Rig rig;
  explicit Rank(int number, Format format = Format::serinus) : rig(32, options(format)) {
    const std::int64_t shift = number * 3;
    for (Owner o = 1; o <= 2; ++o) {
      const std::int64_t base = (o - 1) * 12 + 1 + shift;
      const Rig::Slots slots = {base, base + 2, base + 1};
      rig.alloc(o, slots);
      rig.run(o, 0, slots);
    }
  }
  static Options options(Format format) {
    Options o;
    o.format = format;
    return o;
  }
  std::vector<RequestDigest> digests(std::int64_t length = 3) {
    std::vector<RequestDigest> all;
    for (Owner o = 1; o <= 2; ++o) {
      all.push_back(request_digest(rig.monitor, 0, o, o, length, rig.batch().req_to_token));
    }
    return all;
  }
};

std::vector<RequestDigest> gathered(const std::vector<std::vector<RequestDigest>>& ranks) {
  std::vector<RequestDigest> all;
  for (const auto& r : ranks) all.insert(all.end(), r.begin(), r.end());
  return all;
}

TEST(Ranks, EqualWhereverTheSlotsLie) {
  for (const Format format : {Format::serinus, Format::sglang}) {
    Rank a(0, format), b(1, format), c(2, format);
    const auto all = gathered({a.digests(), b.digests(), c.digests()});
    EXPECT_TRUE(compare_ranks(all, 3).empty());
    EXPECT_NE(all[0], all[1]);
    EXPECT_NE(all[0].chain, 0u);
    if (format == Format::serinus) {
      EXPECT_NE(all[0].kv, 0u);
    }
  }
}

TEST(Ranks, TheOneThatDiffersIsNamedWithWhat) {
  Rank a(0), b(1), c(2);
  b.rig.record(b.rig.table[2 * Rig::kCells + 1]).kv_digest ^= 1;
  auto found = compare_ranks(gathered({a.digests(), b.digests(), c.digests()}), 3);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(to_text(found[0]), "rank 1, request 2: kv");
  EXPECT_TRUE(compare_ranks(gathered({a.digests(), b.digests(), c.digests()}), 3, false).empty());
  // One loaded less of the prefix than the others.
  found = compare_ranks(gathered({a.digests(), c.digests(), c.digests(2)}), 3);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(to_text(found[0]), "rank 2, request 1: length, chain, kv");
  // Another token somewhere.
  c.rig.record(c.rig.table[1 * Rig::kCells + 2]).chain ^= 4;
  found = compare_ranks(gathered({a.digests(), a.digests(), c.digests()}), 3);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].request, 0);
  EXPECT_TRUE(found[0].chain && !found[0].length && !found[0].kv);
  // Ranks that hold different heads compare no bytes: a first token shows all the same.
  Rank d(3);
  d.rig.record(d.rig.table[1 * Rig::kCells + 0]).chain ^= 4;
  found = compare_ranks(gathered({a.digests(), b.digests(), d.digests()}), 3, false);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(to_text(found[0]), "rank 2, request 1: chain");
  // A rank that lost the slot, whatever it says of it.
  a.rig.free({a.rig.table[1 * Rig::kCells + 2]}, 1);
  found = compare_ranks(gathered({a.digests(), b.digests(), b.digests()}), 3);
  ASSERT_FALSE(found.empty());
  EXPECT_EQ(found[0].rank, 0);
  const auto bad = gathered({a.digests(), b.digests()});
  EXPECT_THROW(compare_ranks(bad, 3), ValueError);
  EXPECT_THROW(compare_ranks(bad, 0), ValueError);
}

TEST(Ranks, ADifferenceIsAViolation) {
  Rank a(0), b(1), c(2);
  a.rig.record(a.rig.table[1 * Rig::kCells + 0]).kv_digest ^= 1;
  const auto all = gathered({a.digests(), b.digests(), c.digests()});
  for (Rank* r : {&a, &b, &c}) {
    EXPECT_EQ(report_ranks(r->rig.monitor, all, 3).size(), 1u);
    const auto found = r->rig.monitor.poll();
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].reasons, Reason::digest_differs_across_ranks);
    EXPECT_EQ(found[0].request, 1u);
    EXPECT_NE(found[0].expected_digest, found[0].stored_digest);
  }
}

TEST(Ranks, EveryDifferenceIsAViolation) {
  Rank a(0);
  // A rank of another release.
  auto all = gathered({a.digests(), a.digests(), a.digests()});
  const std::size_t n = all.size() / 3;
  all[n].version = 2;
  auto found = report_ranks(a.rig.monitor, all, 3);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(to_text(found[0]), "rank 1, request 1: version");
  EXPECT_EQ(a.rig.monitor.poll().size(), 1u);
  // Each rank differs from most, in another field.
  all = gathered({a.digests(), a.digests(), a.digests()});
  all[0].chain ^= 1, all[n].length += 1, all[2 * n].owner = 9;
  found = report_ranks(a.rig.monitor, all, 3);
  ASSERT_EQ(found.size(), 3u);
  std::vector<Owner> owners;
  for (const Violation& v : a.rig.monitor.poll()) {
    EXPECT_NE(v.expected_digest, v.stored_digest);
    owners.push_back(v.request);
  }
  EXPECT_NE(std::find(owners.begin(), owners.end(), 9u), owners.end());
}

TEST(Ranks, HostileRowsAndTables) {
  Rank a(0);
  const TensorView table = a.rig.batch().req_to_token;
  for (std::int32_t& cell : a.rig.table) cell = cell * 1000003 - 7;
  for (const std::int64_t row : {-1, 0, 7, 8}) {
    request_digest(a.rig.monitor, 0, 1, row, 1 << 20, table);
  }
  EXPECT_THROW(request_digest(a.rig.monitor, 1, 1, 1, 1, table), ValueError);
}

TEST(Ranks, AsThreads) {
  constexpr int kRanks = 4;
  std::vector<std::vector<RequestDigest>> all(kRanks);
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; ++r) {
    threads.emplace_back([r, &all] {
      Rank rank(r);
      if (r == 2) rank.rig.record(rank.rig.table[1 * Rig::kCells + 1]).chain ^= 1;
      all[static_cast<std::size_t>(r)] = rank.digests();
    });
  }
  for (std::thread& t : threads) t.join();
  const auto found = compare_ranks(gathered(all), kRanks);
  for (const RankDifference& d : found) EXPECT_EQ(d.rank, 2);
}

TEST(Ranks, AsProcesses) {
  constexpr int kRanks = 3;
  std::vector<RequestDigest> all;
  for (int r = 0; r < kRanks; ++r) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
      Rank rank(r);
      const auto mine = rank.digests(r == 1 ? 2 : 3);
      const std::size_t bytes = mine.size() * sizeof mine[0];
      _exit(write(ends[1], mine.data(), bytes) == static_cast<ssize_t>(bytes) ? 0 : 1);
    }
    close(ends[1]);
    RequestDigest two[2];
    ASSERT_EQ(read(ends[0], two, sizeof two), static_cast<ssize_t>(sizeof two));
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_EQ(status, 0);
    all.insert(all.end(), two, two + 2);
  }
  const auto found = compare_ranks(all, kRanks);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(to_text(found[0]), "rank 1, request 1: length, chain, kv");
  EXPECT_EQ(to_text(found[1]), "rank 1, request 2: length, chain, kv");
}

TEST(Transfer, SidesThatAgree) {
  Options o;
  PoolSpec mine, theirs;
  mine.layout = kv_layout("mha_nhd", {.page_size = 16, .heads = 2, .head_size = 64});
  theirs.layout = kv_layout("mha_packed", {.page_size = 64, .heads = 2, .head_size = 64});
  mine.num_layers = theirs.num_layers = 4;
  // Other pages, other order of the dimensions: a token's digest is the same.
  EXPECT_EQ(differences(transfer_terms(o, mine), transfer_terms(o, theirs)),
            std::vector<std::string>{});
  check_transfer(transfer_terms(o, mine), transfer_terms(o, theirs));
}

TEST(Transfer, EveryDifferenceIsNamed) {
  Options o, other = o;
  other.format = Format::sglang;
  other.depth = Depth::partial;
  PoolSpec mine, theirs;
  mine.layout = kv_layout("fp8_656");
  theirs.layout = kv_layout("fp8_576");
  theirs.num_layers = 2;
  const std::vector<std::string> want = {
      "format: serinus here, sglang there", "depth: all here, partial there",
      "layers: 1 here, 2 there", "bytes a token: 656 here, 1152 there",
      "segments: those of fp8_656 here, of fp8_576 there"};
  const TransferTerms a = transfer_terms(o, mine), b = transfer_terms(other, theirs);
  EXPECT_EQ(differences(a, b), want);
  try {
    check_transfer(a, b);
    ADD_FAILURE();
  } catch (const ValueError& e) {
    EXPECT_EQ(e.id(), "SRN3031");
    EXPECT_NE(std::string(e.what()).find("depth: all here, partial there"), std::string::npos);
  }
  // Fields of equal size in another order are another layout.
  PoolSpec swapped = mine;
  swapped.layout.segments[0].bytes = mine.layout.segments[2].bytes;
  swapped.layout.segments[2].bytes = mine.layout.segments[0].bytes;
  EXPECT_EQ(differences(a, transfer_terms(o, swapped)).size(), 1u);
}

TEST(Transfer, AnyBytesAreTerms) {
  TransferTerms noise;
  std::memset(static_cast<void*>(&noise), 0xEE, sizeof noise);
  const TransferTerms mine = transfer_terms({}, {});
  EXPECT_EQ(differences(mine, noise).size(), 1u);  // the version says that nothing else can be read
  noise.version = mine.version;
  EXPECT_GE(differences(mine, noise).size(), 4u);
}

}  // namespace
}  // namespace serinus::canary
