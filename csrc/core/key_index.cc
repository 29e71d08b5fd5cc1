#include "core/key_index.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "core/memory.h"

namespace glt {
namespace {

constexpr uint64_t kFirst = 0x9e3779b97f4a7c15, kSecond = 0xd6e8feb86659fd93;

uint64_t mix(uint64_t a, uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

uint64_t word(const char* bytes, size_t count) {
  uint64_t found = 0;
  std::memcpy(&found, bytes, count);
  return found;
}

uint64_t hash_of(std::string_view text, uint64_t seed) {
  uint64_t hash = mix(seed ^ text.size(), kFirst);
  const char* at = text.data();
  size_t left = text.size();
  for (; left > 8; at += 8, left -= 8) hash = mix(hash ^ word(at, 8), kSecond);
  return mix(hash ^ (left ? word(at, left) : 0), kFirst);
}

constexpr uint64_t kIdMask = (uint64_t{1} << KeyIndex::kIdBits) - 1;

}  // namespace

uint64_t Keys::hash(int64_t row) const {
  uint64_t hash = kSecond;
  for (const KeyColumn& column : columns)
    hash = column.is_text() ? hash_of(column.text(row), hash)
                            : mix(mix(hash ^ static_cast<uint64_t>(column.integer[row]), kFirst), kSecond);
  return hash;
}

bool Keys::same(int64_t row, const Keys& other, int64_t other_row) const {
  for (size_t c = 0; c < columns.size(); ++c) {
    const KeyColumn &mine = columns[c], &theirs = other.columns[c];
    if (mine.is_text() ? mine.text(row) != theirs.text(other_row) : mine.integer[row] != theirs.integer[other_row])
      return false;
  }
  return true;
}

int64_t KeyIndex::num_slots_for(int64_t num_keys) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(num_keys + num_keys / 4 + 1)));
}

bool KeyIndex::add(const Keys& keys, int64_t first_id) {
  for (int64_t i = 0; i < keys.num_rows; ++i) {
    const uint64_t hash = keys.hash(i);
    uint64_t at = hash & mask_, tried = 0;
    while (slots_[at] != 0) {
      if (++tried > mask_) return false;
      at = (at + 1) & mask_;
    }
    slots_[at] = (hash & ~kIdMask) | static_cast<uint64_t>(first_id + i + 1);
  }
  return true;
}

void KeyIndex::find(const Keys& keys, const Keys& wanted, int64_t* ids) const {
  // In blocks, whose slots are asked for before the first is looked at, and the keys they name before they are
  // compared.
  constexpr int64_t kBlock = 64;
  std::array<uint64_t, kBlock> hash;
  for (int64_t begin = 0; begin < wanted.num_rows; begin += kBlock) {
    const int64_t count = std::min(kBlock, wanted.num_rows - begin);
    for (int64_t j = 0; j < count; ++j) {
      hash[j] = wanted.hash(begin + j);
      prefetch(slots_ + (hash[j] & mask_));
    }
    const auto candidate = [&](int64_t j, uint64_t at) {  // its id, if the slot may be of this key, else -1
      const uint64_t slot = slots_[at];
      const auto id = static_cast<int64_t>(slot & kIdMask) - 1;
      return (slot ^ hash[j]) > kIdMask || id >= keys.num_rows ? int64_t{-1} : id;
    };
    const auto ask = [&](auto what) {
      for (int64_t j = 0; j < count; ++j) {
        const int64_t id = candidate(j, hash[j] & mask_);
        if (id >= 0)
          for (const KeyColumn& column : keys.columns) what(column, id);
      }
    };
    ask([](const KeyColumn& column, int64_t id) {
      prefetch(column.is_text() ? column.offset + id : column.integer + id);
    });
    ask([](const KeyColumn& column, int64_t id) {
      if (column.is_text()) prefetch(column.text(id).data());
    });
    for (int64_t j = 0; j < count; ++j) {
      ids[begin + j] = -1;
      uint64_t at = hash[j] & mask_;
      for (uint64_t tried = 0; slots_[at] != 0 && tried <= mask_; ++tried, at = (at + 1) & mask_) {
        const int64_t id = candidate(j, at);
        if (id >= 0 && keys.same(id, wanted, begin + j)) {
          ids[begin + j] = id;
          break;
        }
      }
    }
  }
}

}  // namespace glt
