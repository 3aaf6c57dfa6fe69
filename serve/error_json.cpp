#include "serve/error_json.h"

namespace serinus::serve {

Json to_json(const ErrorEntry& e) {
  return {{"id", e.id},
          {"slug", e.slug},
          {"title", e.title},
          {"message", e.message},
          {"exception", e.exception},
          {"meaning", e.meaning},
          {"trigger", e.trigger},
          {"situations", e.situations},
          {"solutions", e.solutions},
          {"example", {{"before", e.example_before}, {"after", e.example_after}}},
          {"guard", e.guard},
          {"related", e.related},
          {"raised_at", e.raised_at}};
}

std::string dump(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace serinus::serve
