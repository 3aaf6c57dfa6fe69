// The error reference for C: the same pages, as plain structs.
#include <string_view>
#include <vector>

#include <serinus/error.h>
#include <serinus_c.h>

#include "c_api/call.h"

namespace serinus::c_api {
namespace {

serinus_text text(std::string_view s) {
  return {s.data(), s.size()};
}

struct Reference {
  std::vector<std::vector<serinus_text>> lists;  // what the pages' arrays point to
  std::vector<serinus_error_page> pages;
};

const Reference& reference() {
  static const Reference r = [] {
    Reference ref;
    const auto list = [&ref](const std::vector<std::string_view>& items) {
      std::vector<serinus_text>& texts = ref.lists.emplace_back();
      for (const std::string_view item : items) texts.push_back(text(item));
      return texts.data();  // stays: the outer vector moves the inner ones, not their elements
    };
    for (const ErrorEntry& e : error_reference()) {
      ref.pages.push_back({text(e.id), text(e.slug), text(e.title), text(e.message),
                           text(e.exception), text(e.meaning), text(e.trigger), list(e.situations),
                           e.situations.size(), list(e.solutions), e.solutions.size(),
                           text(e.example_before), text(e.example_after), text(e.guard)});
    }
    return ref;
  }();
  return r;
}

}  // namespace
}  // namespace serinus::c_api

using namespace serinus;

size_t serinus_num_error_pages(void) {
  return error_reference().size();
}

const serinus_error_page* serinus_error_page_at(size_t index) {
  const serinus_error_page* page = nullptr;
  c_api::call([&] {
    const auto& pages = c_api::reference().pages;
    if (index < pages.size()) page = &pages[index];
  });
  return page;
}

const serinus_error_page* serinus_find_error(const char* text, size_t size) {
  const serinus_error_page* page = nullptr;
  c_api::call([&] {
    const ErrorEntry* found = find_error(
        size == 0 ? std::string_view{} : std::string_view(&c_api::required("text", text), size));
    if (found == nullptr) return;
    const auto index = found - error_reference().data();
    page = &c_api::reference().pages[static_cast<std::size_t>(index)];
  });
  return page;
}
