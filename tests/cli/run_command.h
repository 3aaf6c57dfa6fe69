// Runs the built `serinus` as a user would.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace serinus::cli {

/// The bytes of a file; none where there is none.
inline std::string read(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

struct CommandResult {
  int exit_code = -1;  ///< -1: ended by a signal
  std::string out, err;
};

/// `arguments` is a piece of shell text: it may quote, redirect and pipe. The command's path comes
/// from the build.
inline CommandResult run_command(const std::string& arguments) {
  CommandResult r;
  std::string err_file = "/tmp/serinus_test_XXXXXX";
  const int fd = mkstemp(err_file.data());
  if (fd < 0) return r;
  close(fd);
  const std::string line = std::string("{ '") + SERINUS_COMMAND_PATH + "' " + arguments + "\n} 2>" +
                           err_file + " </dev/null";
  FILE* pipe = popen(line.c_str(), "r");
  if (pipe == nullptr) return r;
  std::array<char, 4096> buffer;
  for (std::size_t n; (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
    r.out.append(buffer.data(), n);
  const int status = pclose(pipe);
  if (WIFEXITED(status)) r.exit_code = WEXITSTATUS(status);
  r.err = read(err_file);
  unlink(err_file.c_str());
  return r;
}

}  // namespace serinus::cli
