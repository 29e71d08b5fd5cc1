// Which id a key has: keys of integers and texts in columns, found by a hash index over them. All of it may be mapped
// files, of which nothing is believed: a damaged one gives wrong ids at worst.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace glt {

// A column of keys: integers, or texts as their UTF-8 bytes one behind the other. `offset` [n + 1] are where they
// begin.
struct KeyColumn {
  const int64_t* integer = nullptr;
  const int64_t* offset = nullptr;
  const char* bytes = nullptr;
  int64_t num_bytes = 0;

  bool is_text() const { return offset != nullptr; }
  // Row i of a text column; empty if its offsets make no sense.
  std::string_view text(int64_t i) const {
    const int64_t begin = offset[i], end = offset[i + 1];
    if (begin < 0 || end < begin || end > num_bytes) [[unlikely]]
      return {};
    return {bytes + begin, static_cast<size_t>(end - begin)};
  }
};

// Rows of keys: the columns have as many.
struct Keys {
  std::vector<KeyColumn> columns;
  int64_t num_rows = 0;

  uint64_t hash(int64_t row) const;
  bool same(int64_t row, const Keys& other, int64_t other_row) const;
};

// A table of 2^k slots with open addressing, at most 4 in 5 of them used: 0 is free, else the upper 24 bits are some of
// the hash, the others 1 + id.
class KeyIndex {
 public:
  static constexpr int kIdBits = 40;

  static int64_t num_slots_for(int64_t num_keys);
  // num_slots is a power of two.
  KeyIndex(uint64_t* slots, int64_t num_slots) : slots_(slots), mask_(static_cast<uint64_t>(num_slots) - 1) {}

  // Puts keys in, whose ids begin with first_id; the table was zeros at first. Returns false if it is full.
  bool add(const Keys& keys, int64_t first_id);
  // Ids of `wanted`, whose columns are of the same kinds as those of `keys`, all that are in the table; -1: none.
  void find(const Keys& keys, const Keys& wanted, int64_t* ids) const;

 private:
  uint64_t* slots_;
  uint64_t mask_;
};

}  // namespace glt
