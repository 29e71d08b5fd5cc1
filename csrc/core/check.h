// Errors that carry values. The bindings turn std::invalid_argument into ValueError, std::out_of_range into
// IndexError and std::runtime_error into RuntimeError.
#pragma once

#include <cstdio>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

namespace glt {

template <typename T>
void append(std::string& out, const T& value) {
  if constexpr (std::is_convertible_v<const T&, std::string_view>) {
    out += std::string_view(value);
  } else if constexpr (std::is_same_v<T, char>) {
    out += value;
  } else if constexpr (std::is_floating_point_v<T>) {
    char digits[32];
    std::snprintf(digits, sizeof digits, "%g", static_cast<double>(value));
    out += digits;
  } else {
    out += std::to_string(value);
  }
}

// Joins its arguments into one string. No stream does it: a module into which a compiler links libstdc++ statically
// shares its locales with the libstdc++ of torch, and a stream then takes one facet for another.
template <typename... Args>
std::string text(const Args&... args) {
  std::string out;
  (append(out, args), ...);
  return out;
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
