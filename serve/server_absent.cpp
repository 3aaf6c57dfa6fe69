// The build without cpp-httplib.
#include "base/raise.h"
#include "serve/server.h"

namespace serinus::serve {

struct Server::Impl {
  std::string url;
};

bool server_available() noexcept {
  return false;
}

Server::Server(const ServerOptions&, Feed*) {
  raise(errors::Page::serve_not_in_this_build, {{"got", "cpp-httplib was not found"}});
}
Server::~Server() = default;

int Server::port() const noexcept {
  return 0;
}

const std::string& Server::url() const noexcept {
  return impl_->url;
}

}  // namespace serinus::serve
