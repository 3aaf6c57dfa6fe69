#include "c_api/call.h"

#include <stdexcept>
#include <string>

#include <serinus/error.h>
#include <serinus/version.h>

namespace serinus::c_api {
namespace {

struct LastError {
  std::string id, message, argument, value;
  serinus_error view{SERINUS_OK, "", "", "", ""};
};

LastError& last_error() noexcept {
  thread_local LastError e;
  return e;
}

}  // namespace

serinus_status remember(serinus_status status, std::string_view id, std::string_view message,
                        std::string_view argument, std::string_view value) noexcept {
  LastError& last = last_error();
  try {
    last.id = id;
    last.message = message;
    last.argument = argument;
    last.value = value;
    last.view = {status, last.id.c_str(), last.message.c_str(), last.argument.c_str(),
                 last.value.c_str()};
  } catch (...) {  // no memory for the words: these need none
    last.view = {status, "", "not enough memory to describe the error", "", ""};
  }
  return status;
}

serinus_status remember_current_exception() noexcept {
  const auto known = [](serinus_status status, const Error& e) noexcept {
    return remember(status, e.id(), e.what(), e.argument(), e.value());
  };
  const auto out_of_memory = []() noexcept {
    const ErrorEntry& page = entry_of(errors::Page::not_enough_memory);
    return remember(SERINUS_OUT_OF_MEMORY, page.id, page.message, {}, {});
  };
  try {
    throw;
  } catch (const ValueError& e) {
    return known(SERINUS_VALUE_ERROR, e);
  } catch (const TypeError& e) {
    return known(SERINUS_TYPE_ERROR, e);
  } catch (const InputError& e) {
    return known(SERINUS_INPUT_ERROR, e);
  } catch (const RuntimeError& e) {
    return known(SERINUS_RUNTIME_ERROR, e);
  } catch (const NotImplementedError& e) {
    return known(SERINUS_NOT_IMPLEMENTED, e);
  } catch (const Error& e) {
    return known(SERINUS_INTERNAL_ERROR, e);
  } catch (const std::bad_alloc&) {
    return out_of_memory();
  } catch (const std::length_error&) {  // more than any memory holds
    return out_of_memory();
  } catch (const std::exception& e) {
    return remember(SERINUS_INTERNAL_ERROR, entry_of(errors::Page::unexpected_exception).id,
                    e.what(), {}, {});
  } catch (...) {
    return remember(SERINUS_INTERNAL_ERROR, entry_of(errors::Page::unexpected_exception).id,
                    "unexpected: something that is no std::exception", {}, {});
  }
}

DType dtype(const char* name, serinus_dtype value) {
  return one_of(name, value,
                {DType::u8, DType::i32, DType::i64, DType::u32, DType::u64, DType::f32, DType::f64,
                 DType::bf16, DType::e4m3});
}

Device device(const char* name, std::int32_t type, std::int32_t index) {
  return {one_of(name, type, {DeviceType::cpu, DeviceType::cpu, DeviceType::cuda}), index};
}

TensorView tensor(const char* name, const serinus_tensor& t) {
  TensorView v;
  v.data = t.data;
  v.dtype = dtype(name, t.dtype);
  v.device = device(name, t.device_type, t.device_index);
  v.rank = t.rank;
  for (std::size_t i = 0; i < TensorView::kMaxRank; ++i) {
    v.shape[i] = t.shape[i];
    v.strides[i] = t.strides[i];
  }
  return v;
}

}  // namespace serinus::c_api

using namespace serinus;

static_assert(SERINUS_MAX_RANK == TensorView::kMaxRank);

uint32_t serinus_c_abi_version(void) {
  return SERINUS_C_ABI_VERSION;
}

const char* serinus_version(void) {
  return version_string();
}

const serinus_error* serinus_last_error(void) {
  return &c_api::last_error().view;
}

serinus_tensor serinus_dense(void* data, serinus_dtype dtype, int32_t rank, const int64_t* shape) {
  serinus_tensor t{};
  t.data = data;
  t.dtype = dtype;
  t.device_type = SERINUS_CPU;
  t.rank = rank;
  std::int64_t dense = 1;
  for (int i = rank - 1; i >= 0 && rank <= SERINUS_MAX_RANK && shape != nullptr; --i) {
    t.shape[i] = shape[i];
    t.strides[i] = dense;
    // A size that makes no sense is refused by the call that gets the tensor; here it must only not
    // overflow.
    if (__builtin_mul_overflow(dense, shape[i], &dense)) dense = 0;
  }
  return t;
}
