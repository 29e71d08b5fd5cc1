#include "core/row_table.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <mutex>
#include <numbers>
#include <shared_mutex>
#include <type_traits>
#include <vector>

#include "core/check.h"
#include "core/memory.h"
#include "core/rng.h"
#include "core/threads.h"

namespace glt {
namespace {

constexpr int64_t kBlockBytes = 4096;     // under one lock, where rows are shorter
constexpr int64_t kMaxLocks = 1024;       // more would not stay in the first-level cache
constexpr int64_t kChunkRows = 256;       // dealt with at a time by each thread
constexpr int64_t kRangeBytes = 1 << 18;  // of consecutive rows
constexpr int64_t kHelpBytes = 1 << 18;   // a helper costs more than copying less

int helpers(int64_t n, int64_t row_bytes, int num_threads) {
  return static_cast<int>(std::min<int64_t>(num_threads - 1, n * row_bytes / kHelpBytes));
}

bool ascends(const SomeRows& some) {
  if (!some.numbers) return true;
  for (int64_t i = 1; i < some.n; ++i)
    if (some.numbers[i] <= some.numbers[i - 1]) return false;
  return true;
}

template <typename T>
T sum_of(T a, T b) {
  if constexpr (sizeof(T) == 2 && !std::is_integral_v<T>)
    return T(static_cast<float>(a) + static_cast<float>(b));
  else
    return static_cast<T>(a + b);
}

template <typename T>
void add_numbers_to(std::byte* row, const std::byte* value, int64_t bytes) {
  for (int64_t b = 0; b < bytes; b += sizeof(T)) {  // as bytes: nothing says that rows are aligned
    T sum, more;
    std::memcpy(&sum, row + b, sizeof(T));
    std::memcpy(&more, value + b, sizeof(T));
    sum = sum_of(sum, more);
    std::memcpy(row + b, &sum, sizeof(T));
  }
}

// What a machine word is loaded and stored by, so that it needs no lock to be read.
template <typename Do>
void as_word(int64_t bytes, const Do& with) {
  switch (bytes) {
    case 1:
      return with(uint8_t{});
    case 2:
      return with(uint16_t{});
    case 4:
      return with(uint32_t{});
    default:
      return with(uint64_t{});
  }
}

}  // namespace

RowTable::RowTable(std::byte* rows, int64_t num_rows, int64_t row_bytes)
    : rows_(rows), num_rows_(num_rows), row_bytes_(row_bytes) {
  advise_huge_pages(rows, num_rows * row_bytes);
  require(num_rows >= 0 && row_bytes >= 0, "a table of ", num_rows, " rows of ", row_bytes, " bytes");
  const auto block_rows = static_cast<uint64_t>(std::max<int64_t>(1, kBlockBytes / std::max<int64_t>(row_bytes, 1)));
  block_shift_ = std::bit_width(block_rows) - 1;
  const int64_t num_blocks = (num_rows >> block_shift_) + 1;
  const auto num_locks = std::bit_floor(static_cast<uint64_t>(std::min(num_blocks, kMaxLocks)));
  lock_mask_ = static_cast<int64_t>(num_locks) - 1;
  locks_ = std::make_unique<PaddedLock[]>(num_locks);
  is_word_ = row_bytes > 0 && row_bytes <= 8 && std::has_single_bit(static_cast<uint64_t>(row_bytes)) &&
             reinterpret_cast<uintptr_t>(rows) % row_bytes == 0;
}

void RowTable::require_rows(const SomeRows& some) const {
  if (!some.numbers) {
    require_index(some.first >= 0 && some.n >= 0 && some.first <= num_rows_ && some.n <= num_rows_ - some.first,
                  "rows ", some.first, " to ", some.first + some.n - 1, " are outside [0, ", num_rows_, ")");
    return;
  }
  for (int64_t i = 0; i < some.n; ++i)
    require_index(static_cast<uint64_t>(some.numbers[i]) < static_cast<uint64_t>(num_rows_), "rows[", i,
                  "] = ", some.numbers[i], " is outside [0, ", num_rows_, ")");
}

template <typename T>
void RowTable::read_elements(const SomeRows& rows, int64_t first, int64_t last, std::byte* out) const {
  const SomeRows some = rows;  // which the bytes that are written cannot be, as the compiler sees
  T* table = reinterpret_cast<T*>(rows_);
  if (some.numbers)
    for (int64_t i = first; i < last; ++i) prefetch(table + some.numbers[i]);
  for (int64_t i = first; i < last; ++i) {
    const T value = __atomic_load_n(table + some[i], __ATOMIC_RELAXED);
    std::memcpy(out + i * sizeof(T), &value, sizeof(T));  // the table is aligned, but nothing says that `out` is
  }
}

int64_t RowTable::chunk_rows(const SomeRows& some) const {
  return some.numbers ? kChunkRows : std::max<int64_t>(1, kRangeBytes / row_bytes_);
}

int64_t RowTable::run_length(const SomeRows& some, int64_t i, int64_t last) const {
  if (some.numbers) return 1;
  const int64_t block_rows = int64_t{1} << block_shift_;
  return std::min(last - i, block_rows - (some[i] & (block_rows - 1)));
}

void RowTable::read_rows(const SomeRows& some, int64_t first, int64_t last, std::byte* out) const {
  const RowAhead ahead(some.numbers ? row_bytes_ : 0);
  for (int64_t i = first; i < std::min(first + ahead.rows, last); ++i) ahead.fetch(row(some[i]));
  std::shared_lock<RowLock> held;
  for (int64_t i = first, n; i < last; i += n) {
    n = run_length(some, i, last);
    if (i + ahead.rows < last) ahead.fetch(row(some[i + ahead.rows]));
    RowLock& lock = lock_of(some[i]);
    if (held.mutex() != &lock) {  // neighbours share one
      held = {};                  // never two at a time: a writer between them would be waited for in a circle
      held = std::shared_lock(lock);
    }
    std::memcpy(out + i * row_bytes_, row(some[i]), n * row_bytes_);
  }
}

void RowTable::read(const SomeRows& some, std::byte* out, int num_threads) const {
  require_rows(some);
  if (row_bytes_ == 0) return;
  for_chunks(some.n, chunk_rows(some), helpers(some.n, row_bytes_, num_threads), [&](int64_t first, int64_t last) {
    if (is_word_)
      as_word(row_bytes_, [&](auto word) { read_elements<decltype(word)>(some, first, last, out); });
    else
      read_rows(some, first, last, out);
  });
}

// change_rows(row, i, n) for each of some rows and the n - 1 behind it, under their lock, equal ones in the order
// given.
template <typename Change>
void RowTable::change(const SomeRows& some, int num_threads, const Change& change_rows) {
  require_rows(some);
  if (row_bytes_ == 0) return;
  const RowAhead ahead(some.numbers ? row_bytes_ : 0);
  // Changes i_of(first), ..., i_of(last - 1).
  const auto run = [&](int64_t first, int64_t last, const auto& i_of) {
    std::unique_lock<RowLock> held;
    for (int64_t at = first, n; at < last; at += n) {
      if (at + ahead.rows < last) ahead.fetch(row(some[i_of(at + ahead.rows)]));
      const int64_t i = i_of(at);
      n = run_length(some, i, last);
      RowLock& lock = lock_of(some[i]);
      if (held.mutex() != &lock) {
        held = {};
        held = std::unique_lock(lock);
      }
      change_rows(row(some[i]), i, n);
    }
  };
  const auto itself = [](int64_t i) { return i; };
  const int num_helpers = helpers(some.n, row_bytes_, num_threads);
  if (num_helpers == 0) return run(0, some.n, itself);
  if (ascends(some))  // each row once
    return for_chunks(some.n, chunk_rows(some), num_helpers,
                      [&](int64_t first, int64_t last) { run(first, last, itself); });
  // Equal rows have the same lock: sorted by lock, all of a group in the order given, groups may go to any thread.
  const int64_t num_groups = lock_mask_ + 1;
  std::vector<int64_t> begin(num_groups + 1), order(some.n);
  const auto group_of = [&](int64_t i) { return (some.numbers[i] >> block_shift_) & lock_mask_; };
  for (int64_t i = 0; i < some.n; ++i) ++begin[group_of(i) + 1];
  for (int64_t g = 0; g < num_groups; ++g) begin[g + 1] += begin[g];
  std::vector<int64_t> next(begin.begin(), begin.end() - 1);
  for (int64_t i = 0; i < some.n; ++i) order[next[group_of(i)]++] = i;
  for_chunks(num_groups, 1, num_helpers,
             [&](int64_t g, int64_t) { run(begin[g], begin[g + 1], [&](int64_t at) { return order[at]; }); });
}

void RowTable::write(const SomeRows& some, const std::byte* values, int num_threads) {
  if (is_word_)  // readers do not take the lock
    return as_word(row_bytes_, [&](auto word) {
      using Word = decltype(word);
      change(some, num_threads, [&](std::byte* row, int64_t i, int64_t n) {
        for (int64_t k = 0; k < n; ++k) {
          Word value;
          std::memcpy(&value, values + (i + k) * sizeof(Word), sizeof(Word));
          __atomic_store_n(reinterpret_cast<Word*>(row) + k, value, __ATOMIC_RELAXED);
        }
      });
    });
  change(some, num_threads,
         [&](std::byte* row, int64_t i, int64_t n) { std::memcpy(row, values + i * row_bytes_, n * row_bytes_); });
}

void RowTable::replace_locked(int64_t number, const std::byte* value) {
  if (!is_word_) {
    std::memcpy(row(number), value, row_bytes_);
    return;
  }
  as_word(row_bytes_, [&](auto word) {
    std::memcpy(&word, value, sizeof(word));
    __atomic_store_n(reinterpret_cast<decltype(word)*>(row(number)), word, __ATOMIC_RELAXED);
  });
}

void RowTable::add(const SomeRows& some, const std::byte* values, Number number, int num_threads) {
  const auto add_as = [&](auto zero) {
    using T = decltype(zero);
    require(row_bytes_ % sizeof(T) == 0, "rows of ", row_bytes_, " bytes hold no numbers of ", sizeof(T));
    if (!is_word_)
      return change(some, num_threads, [&](std::byte* row, int64_t i, int64_t n) {
        add_numbers_to<T>(row, values + i * row_bytes_, n * row_bytes_);
      });
    as_word(row_bytes_, [&](auto word) {
      using Word = decltype(word);
      if constexpr (sizeof(Word) >= sizeof(T))
        change(some, num_threads, [&](std::byte* row, int64_t i, int64_t n) {
          for (int64_t k = 0; k < n; ++k) {
            Word* at = reinterpret_cast<Word*>(row) + k;
            Word sum = __atomic_load_n(at, __ATOMIC_RELAXED);
            add_numbers_to<T>(reinterpret_cast<std::byte*>(&sum), values + (i + k) * sizeof(Word), sizeof(Word));
            __atomic_store_n(at, sum, __ATOMIC_RELAXED);
          }
        });
    });
  };
  switch (number) {
    case Number::kInt8:
      return add_as(uint8_t{});
    case Number::kInt16:
      return add_as(uint16_t{});
    case Number::kInt32:
      return add_as(uint32_t{});
    case Number::kInt64:
      return add_as(uint64_t{});
    case Number::kFloat16:
      return add_as(Float16{});
    case Number::kBfloat16:
      return add_as(Bfloat16{});
    case Number::kFloat32:
      return add_as(float{});
    case Number::kFloat64:
      return add_as(double{});
  }
}

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
  for_chunks(some.n, chunk, std::min<int64_t>(num_threads, num_chunks) - 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto row = static_cast<uint64_t>(some[i]);
      for (int64_t first = 0; first < width; first += kPerBlock) {
        const auto block = static_cast<uint64_t>(first / kPerBlock);
        T made[kPerBlock];
        four_values(philox({{static_cast<uint32_t>(row), static_cast<uint32_t>(row >> 32), static_cast<uint32_t>(block),
                             static_cast<uint32_t>(block >> 32)}},
                           values.key),
                    values, made);
        std::copy_n(made, std::min<int64_t>(kPerBlock, width - first), out + i * width + first);
      }
    }
  });
}

template void fill_random<float>(const SomeRows&, const RandomValues&, int64_t, float*, int);
template void fill_random<double>(const SomeRows&, const RandomValues&, int64_t, double*, int);

}  // namespace glt
