// The door of the sparse MLA prefill: the native contract, in the order of the fields.
#pragma once

#include "sparse_mla/backend.h"

namespace serinus::sparse_mla {

/// Copies the arguments into the backend's form without looking at them.
Params describe(const SparseMlaPrefill& args) noexcept;

/// Throws for the first argument that breaks the contract, but for the workspace's size.
void check(const SparseMlaPrefill& args);

/// Throws where the workspace holds fewer than `bytes`.
void check_workspace(const SparseMlaPrefill& args, std::size_t bytes);

}  // namespace serinus::sparse_mla
