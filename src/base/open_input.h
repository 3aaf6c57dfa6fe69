// Opening a file that a user names.
#pragma once

#include <fstream>
#include <string>

namespace serinus {

/// For reading, as bytes. Raises input_file_unreadable where it cannot be opened, and where the
/// path holds a NUL, at which the system would end it and open another file.
std::ifstream open_input(const std::string& path);

}  // namespace serinus
