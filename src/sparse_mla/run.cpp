// The public entry points: check at the door, describe once, hand to one backend.
#include <exception>

#include <serinus/error.h>

#include "sparse_mla/check.h"

namespace serinus {

namespace {

bool on_cuda(const SparseMlaPrefill& args) {
  return args.q.device.type == DeviceType::cuda;
}

}  // namespace

std::size_t sparse_mla_workspace_bytes(const SparseMlaPrefill& args) {
  return on_cuda(args) ? sparse_mla::workspace_sm90(sparse_mla::describe(args), args.q.device) : 0;
}

void sparse_mla_prefill(const SparseMlaPrefill& args, Stream stream, int threads) {
  sparse_mla::check(args);
  sparse_mla::check_workspace(args, sparse_mla_workspace_bytes(args));
  const sparse_mla::Params params = sparse_mla::describe(args);
  if (on_cuda(args)) {
    sparse_mla::run_sm90(params, args.q.device, stream);
  } else {
    sparse_mla::run_cpu(params, threads);
  }
}

CanRun can_run(const SparseMlaPrefill& args) noexcept {
  try {
    sparse_mla::check(args);
    if (on_cuda(args)) {
      CanRun answer = sparse_mla::can_run_sm90(sparse_mla::describe(args), args.q.device);
      if (!answer) return answer;
    }
    sparse_mla::check_workspace(args, sparse_mla_workspace_bytes(args));
    return {};
  } catch (const Error& e) {
    return {false, e.id(), e.what()};
  } catch (const std::exception& e) {
    return {false, "", e.what()};
  }
}

}  // namespace serinus
