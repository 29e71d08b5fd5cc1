// Rows that many threads read, replace and add to at a time: none is ever seen, or left, half-written.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/threads.h"

namespace glt {

// A lock of four bytes for as long as it takes to copy a row: many readers, or one writer. Spins, and yields where it
// must wait long. A writer that waits keeps new readers out, so it is never starved. Names as std::shared_lock and
// std::unique_lock want them.
class RowLock {
 public:
  void lock_shared() {
    Backoff backoff;
    while (state_.fetch_add(1, std::memory_order_acquire) & kWriter) {
      state_.fetch_sub(1, std::memory_order_relaxed);
      while (state_.load(std::memory_order_relaxed) & kWriter) backoff.pause();
    }
  }

  void unlock_shared() { state_.fetch_sub(1, std::memory_order_release); }

  void lock() {
    Backoff backoff;
    while (state_.fetch_or(kWriter, std::memory_order_acquire) & kWriter) backoff.pause();
    while (state_.load(std::memory_order_acquire) & ~kWriter) backoff.pause();  // those that were here before
  }

  void unlock() { state_.fetch_and(~kWriter, std::memory_order_release); }

 private:
  static constexpr uint32_t kWriter = 1u << 31;
  std::atomic<uint32_t> state_{0};  // readers, and whether there is a writer
};

// Elements of two bytes, as float32 and back, rounded to nearest even.
struct Bfloat16 {
  uint16_t bits = 0;

  Bfloat16() = default;
  explicit Bfloat16(float value) {
    const uint32_t wide = std::bit_cast<uint32_t>(value);
    const bool is_nan = (wide & 0x7FFFFFFFu) > 0x7F800000u;  // it stays one
    bits = static_cast<uint16_t>(is_nan ? wide >> 16 | 0x40u : (wide + 0x7FFFu + (wide >> 16 & 1u)) >> 16);
  }
  explicit operator float() const { return std::bit_cast<float>(uint32_t{bits} << 16); }
};

struct Float16 {
  _Float16 value = 0;

  Float16() = default;
  explicit Float16(float wide) : value(static_cast<_Float16>(wide)) {}
  explicit operator float() const { return static_cast<float>(value); }
};

// What the bytes of a row stand for, where they are added to. Integers wrap around, with and without sign alike;
// complex numbers are pairs. Halves are added in float32 and rounded to nearest even, once per addition.
enum class Number { kInt8, kInt16, kInt32, kInt64, kFloat16, kBfloat16, kFloat32, kFloat64 };

// Some rows: those of these numbers, or n consecutive ones.
struct SomeRows {
  const int64_t* numbers;  // [n], or null
  int64_t first;           // without numbers
  int64_t n;

  int64_t operator[](int64_t i) const { return numbers ? numbers[i] : first + i; }
};

// Memory of the caller's, which outlives the table, and the locks that guard it: one for a block of rows, shared by
// blocks that are far apart.
class RowTable {
 public:
  RowTable(std::byte* rows, int64_t num_rows, int64_t row_bytes);

  int64_t num_rows() const { return num_rows_; }
  int64_t row_bytes() const { return row_bytes_; }

  // out[i] = row some[i]. Like the others, throws std::out_of_range, naming the first bad row, before anything is
  // copied, and gives the same result with any num_threads.
  void read(const SomeRows& some, std::byte* out, int num_threads) const;

  // Row some[i] = values[i]; of equal ones the last stays.
  void write(const SomeRows& some, const std::byte* values, int num_threads);

  // Row some[i] += values[i], one after the other where they are equal.
  void add(const SomeRows& some, const std::byte* values, Number number, int num_threads);

  // For changes made elsewhere: hold this to change the row.
  RowLock& lock_of(int64_t row) const { return locks_[(row >> block_shift_) & lock_mask_].lock; }
  std::byte* row(int64_t row) const { return rows_ + row * row_bytes_; }
  void replace_locked(int64_t row, const std::byte* value);  // some read without the lock: do not write to row()

 private:
  struct alignas(64) PaddedLock {
    RowLock lock;
  };

  void require_rows(const SomeRows& some) const;
  int64_t chunk_rows(const SomeRows& some) const;  // dealt with at a time by each thread
  // How many of some[i], ..., some[last - 1] are one behind the other under one lock.
  int64_t run_length(const SomeRows& some, int64_t i, int64_t last) const;
  template <typename Change>
  void change(const SomeRows& some, int num_threads, const Change& change_rows);
  template <typename T>
  void read_elements(const SomeRows& rows, int64_t first, int64_t last, std::byte* out) const;
  void read_rows(const SomeRows& some, int64_t first, int64_t last, std::byte* out) const;

  std::byte* rows_;
  int64_t num_rows_, row_bytes_;
  int block_shift_;    // log2 of the rows in a block
  int64_t lock_mask_;  // number of locks - 1
  bool is_word_;       // whether the machine loads and stores a row at once
  std::unique_ptr<PaddedLock[]> locks_;
};

// Random values of rows, each a function of its row, its column and a key.
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
