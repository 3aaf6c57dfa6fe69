// What machines must agree on: digests of requests, and the terms of a transfer. Both cross as the
// bytes that an engine sends.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <serinus/canary_ranks.h>

#include "base/checks.h"
#include "bind.h"
#include "numbers.h"
#include "tensor.h"

namespace serinus::python {

namespace {

using canary::Monitor;

nb::bytes request_digests(Monitor& monitor, int pool, nb::handle owners, nb::handle rows,
                          nb::handle lengths, nb::handle req_to_token) {
  std::vector<canary::Owner> who;
  narrow("owners", owners, who);
  const Numbers row("rows", rows);
  const Numbers length("lengths", lengths);
  check_entries("rows", row.span().size(), "owners", who.size());
  check_entries("lengths", length.span().size(), "owners", who.size());
  Tensors tensors;
  const TensorView table = tensors.take("req_to_token", req_to_token);
  std::vector<canary::RequestDigest> out;
  out.reserve(who.size());
  for (std::size_t i = 0; i < who.size(); ++i) {
    out.push_back(
        canary::request_digest(monitor, pool, who[i], row.span()[i], length.span()[i], table));
  }
  return nb::bytes(out.data(), out.size() * sizeof(canary::RequestDigest));
}

// Copied: what arrives from another machine may lie at any address.
std::vector<canary::RequestDigest> digests_in(const TensorView& gathered) {
  check_device("gathered", gathered, {});
  check_contiguous("gathered", gathered);
  const auto bytes = static_cast<std::size_t>(gathered.numel() * size_of(gathered.dtype));
  const std::size_t n = bytes / sizeof(canary::RequestDigest);
  check_entries("gathered (bytes)", bytes, "so many digests", n * sizeof(canary::RequestDigest));
  std::vector<canary::RequestDigest> out(n);
  if (bytes != 0) std::memcpy(out.data(), gathered.as<const std::uint8_t>(), bytes);
  return out;
}

nb::list differences_of(const std::vector<canary::RankDifference>& found) {
  nb::list out;
  for (const canary::RankDifference& d : found) {
    nb::dict one;
    one["rank"] = d.rank;
    one["request"] = d.request;
    one["owner"] = d.owner;
    one["version"] = d.version;
    one["owner_differs"] = d.owner_differs;
    one["length"] = d.length;
    one["chain"] = d.chain;
    one["kv"] = d.kv;
    one["text"] = canary::to_text(d);
    out.append(one);
  }
  return out;
}

canary::TransferTerms terms_in(const char* name, const nb::bytes& bytes) {
  check_entries(name, bytes.size(), "transfer_terms()", sizeof(canary::TransferTerms));
  canary::TransferTerms terms;
  std::memcpy(&terms, bytes.c_str(), sizeof terms);
  return terms;
}

}  // namespace

void bind_ranks(nb::module_& m) {
  m.def("request_digests", &request_digests);
  m.def("compare_ranks", [](nb::handle gathered, int num_ranks, bool kv) {
    Tensors tensors;
    return differences_of(
        canary::compare_ranks(digests_in(tensors.take("gathered", gathered)), num_ranks, kv));
  });
  m.def("report_ranks", [](Monitor& monitor, nb::handle gathered, int num_ranks, bool kv) {
    Tensors tensors;
    return differences_of(canary::report_ranks(
        monitor, digests_in(tensors.take("gathered", gathered)), num_ranks, kv));
  });
  m.def("transfer_terms", [](const Monitor& monitor, int pool) {
    const canary::TransferTerms terms =
        canary::transfer_terms(monitor.options(), monitor.pool(pool));
    return nb::bytes(&terms, sizeof terms);
  });
  m.def("transfer_differences", [](const nb::bytes& mine, const nb::bytes& theirs) {
    return canary::differences(terms_in("mine", mine), terms_in("theirs", theirs));
  });
  m.def("check_transfer", [](const nb::bytes& mine, const nb::bytes& theirs) {
    canary::check_transfer(terms_in("mine", mine), terms_in("theirs", theirs));
  });
}

}  // namespace serinus::python
