// Errors that carry values. The bindings turn std::invalid_argument into ValueError, std::out_of_range into
// IndexError and std::runtime_error into RuntimeError.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace glt {

// Joins its arguments into one string, as `<<` prints them.
template <typename... Args>
std::string text(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return out.str();
}

template <typename... Args>
void require(bool condition, const Args&... message) {
  if (!condition) [[unlikely]]
    throw std::invalid_argument(text(message...));
}

template <typename... Args>
void require_index(bool condition, const Args&... message) {
  if (!condition) [[unlikely]]
    throw std::out_of_range(text(message...));
}

}  // namespace glt
