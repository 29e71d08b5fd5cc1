#include "core/row_values.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numbers>

#include "core/rng.h"
#include "core/team.h"

namespace glt {
namespace {

constexpr int64_t kChunkValues = 1 << 14;
constexpr int kPerBlock = 4;  // 32 bits each

// In (0, 1), never at its ends: logarithms are taken of it.
double unit(uint32_t word) {
  return (word + 0.5) * 0x1p-32;
}

template <typename T>
void four_values(const Bits128& bits, const RandomValues& values, T* out) {
  if (values.is_normal) {
    for (int pair = 0; pair < 2; ++pair) {
      const double radius = values.b * std::sqrt(-2 * std::log(unit(bits.word[2 * pair])));
      const double angle = 2 * std::numbers::pi * unit(bits.word[2 * pair + 1]);
      out[2 * pair] = static_cast<T>(values.a + radius * std::cos(angle));
      out[2 * pair + 1] = static_cast<T>(values.a + radius * std::sin(angle));
    }
    return;
  }
  const T below = std::nextafter(static_cast<T>(values.b), static_cast<T>(values.a));
  for (int i = 0; i < kPerBlock; ++i)  // rounding may reach b
    out[i] = std::min(static_cast<T>(values.a + (values.b - values.a) * unit(bits.word[i])), below);
}

}  // namespace

template <typename T>
void fill_random(const SomeRows& some, const RandomValues& values, int64_t width, T* out, int num_threads) {
  const int64_t chunk = std::max<int64_t>(1, kChunkValues / std::max<int64_t>(width, 1));
  const int64_t num_chunks = (some.n + chunk - 1) / chunk;
  std::atomic<int64_t> next{0};
  const auto work = [&] {
    for (int64_t c; (c = next.fetch_add(1, std::memory_order_relaxed)) < num_chunks;)
      for (int64_t i = c * chunk; i < std::min(some.n, (c + 1) * chunk); ++i) {
        const auto row = static_cast<uint64_t>(some[i]);
        for (int64_t first = 0; first < width; first += kPerBlock) {
          const auto block = static_cast<uint64_t>(first / kPerBlock);
          T made[kPerBlock];
          four_values(philox({{static_cast<uint32_t>(row), static_cast<uint32_t>(row >> 32),
                               static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32)}},
                             values.key),
                      values, made);
          std::copy_n(made, std::min<int64_t>(kPerBlock, width - first), out + i * width + first);
        }
      }
  };
  run_with_helpers(static_cast<int>(std::min<int64_t>(num_threads, num_chunks)) - 1, work, work);
}

template void fill_random<float>(const SomeRows&, const RandomValues&, int64_t, float*, int);
template void fill_random<double>(const SomeRows&, const RandomValues&, int64_t, double*, int);

}  // namespace glt
