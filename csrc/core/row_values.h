// Random values of rows, each a function of its row, its column and a key: whoever fills it in.
#pragma once

#include <cstdint>

#include "core/row_table.h"

namespace glt {

struct RandomValues {
  bool is_normal;  // of mean a and standard deviation b; else uniform in [a, b)
  double a, b;
  uint64_t key;
};

// out [n, width]: values of these rows, the same with any num_threads. Normal ones are made by Box and Muller's
// transform (Annals of Mathematical Statistics 29, 1958) in float64.
template <typename T>
void fill_random(const SomeRows& some, const RandomValues& values, int64_t width, T* out, int num_threads);

}  // namespace glt
