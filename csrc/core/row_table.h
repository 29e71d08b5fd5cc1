// Rows that many threads read, replace and add to at a time: none is ever seen, or left, half-written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/row_lock.h"

namespace glt {

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
  // How many of some[i], ..., some[last - 1] are one behind the other under one lock.
  int64_t run_length(const SomeRows& some, int64_t i, int64_t last) const;
  template <typename Change>
  void change(const SomeRows& some, int num_threads, const Change& change_rows);
  template <typename T>
  void read_elements(const SomeRows& some, int64_t first, int64_t last, T* out) const;
  void read_rows(const SomeRows& some, int64_t first, int64_t last, std::byte* out) const;

  std::byte* rows_;
  int64_t num_rows_, row_bytes_;
  int block_shift_;    // log2 of the rows in a block
  int64_t lock_mask_;  // number of locks - 1
  bool is_word_;       // whether the machine loads and stores a row at once
  std::unique_ptr<PaddedLock[]> locks_;
};

}  // namespace glt
