#include "core/members.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "core/wide.h"

namespace glt {
namespace {

constexpr uint64_t kBitsPerNode = 16;
constexpr int kMinWidth = 8, kMaxWidth = 31;  // of hashes, in bits
constexpr uint32_t kMultiplier = 0x9E3779B1u;

// Of the low half of an id: those of one graph differ there, or nearly all do.
template <typename Id>
uint32_t hash(Id id) {
  return static_cast<uint32_t>(id) * kMultiplier;
}

// The ids are known if the top bit of this is not set: that of an id, or of what is left to the last one.
template <typename Id>
uint64_t sign_of(Id id, uint64_t last) {
  const auto wide = static_cast<uint64_t>(static_cast<int64_t>(id));
  return wide | (last - wide);
}

template <typename Id>
int64_t plain_candidates(const Id* id, int64_t first, int64_t n, const uint32_t* bits, int shift, uint64_t last,
                         uint32_t* position, int64_t num_found, uint64_t& signs) {
  for (int64_t i = first; i < n; ++i) {  // without branches, which would not be foreseen
    signs |= sign_of(id[i], last);
    const uint32_t bit = hash(id[i]) >> shift;
    position[num_found] = static_cast<uint32_t>(i);
    num_found += bits[bit >> 5] >> (bit & 31) & 1;
  }
  return num_found;
}

// One tree of a Members.
struct Lookup {
  const uint32_t* bits;
  const uint32_t* set_before;
  const Members::Slot* slots;
  int shift;
};

// The slot of the first node with bit `at`, which is set.
[[gnu::always_inline]] inline uint32_t slot_of(const uint32_t* bits, const uint32_t* set_before, uint32_t at) {
  const uint32_t below = (uint32_t{1} << (at & 31)) - 1;
  return set_before[at >> 5] + static_cast<uint32_t>(std::popcount(bits[at >> 5] & below));
}

// Keeps those of position[0, num_maybe), whose bits are set, that are nodes of the tree, and writes their local ids.
template <typename Id>
[[gnu::always_inline]] inline int64_t keep_found(const Id* id, const Lookup& tree, int64_t num_maybe,
                                                 uint32_t* position, uint32_t* local) {
  int64_t num_found = 0;
  for (int64_t k = 0; k < num_maybe; ++k) {  // without branches but for nodes that share a bit, which few do
    const uint32_t at = position[k];
    const int64_t wanted = id[at];
    const Members::Slot* slot = tree.slots + slot_of(tree.bits, tree.set_before, hash(id[at]) >> tree.shift);
    if (slot->next != 0)
      while (slot->id != wanted && slot->next != 0) slot = tree.slots + slot->next;
    position[num_found] = at;
    local[num_found] = slot->local;
    num_found += slot->id == wanted;
  }
  return num_found;
}

#if defined(__x86_64__)

template <typename Id>
GLT_WIDE int64_t wide_keep_found(const Id* id, const Lookup& tree, int64_t num_maybe, uint32_t* position,
                                 uint32_t* local) {
  return keep_found(id, tree, num_maybe, position, local);
}

// The low halves of 8 ids; adds the signs of all.
GLT_WIDE inline __m256i low_halves(const int32_t* id, __m256i last, __m256i& signs) {
  const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(id));
  signs = _mm256_or_si256(signs, _mm256_or_si256(low, _mm256_sub_epi32(last, low)));
  return low;
}
GLT_WIDE inline __m256i low_halves(const int64_t* id, __m256i last, __m256i& signs) {
  const __m256i first = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(id));
  const __m256i second = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(id + 4));
  const __m256i both = _mm256_or_si256(_mm256_sub_epi64(last, first), _mm256_sub_epi64(last, second));
  signs = _mm256_or_si256(signs, _mm256_or_si256(both, _mm256_or_si256(first, second)));
  const __m256 pairs = _mm256_shuffle_ps(_mm256_castsi256_ps(first), _mm256_castsi256_ps(second), 0b10001000);
  return _mm256_permute4x64_epi64(_mm256_castps_si256(pairs), 0b11011000);
}

// table[index] of 8 lanes, one by one: in less time than an instruction that gathers takes on Zen 3.
GLT_WIDE inline __m256i look_up(const uint32_t* table, __m256i index) {
  const auto four = [&](__m128i of) GLT_WIDE {
    const auto low = static_cast<uint64_t>(_mm_cvtsi128_si64(of));
    const auto high = static_cast<uint64_t>(_mm_extract_epi64(of, 1));
    __m128i found = _mm_cvtsi32_si128(static_cast<int>(table[static_cast<uint32_t>(low)]));
    found = _mm_insert_epi32(found, static_cast<int>(table[low >> 32]), 1);
    found = _mm_insert_epi32(found, static_cast<int>(table[static_cast<uint32_t>(high)]), 2);
    return _mm_insert_epi32(found, static_cast<int>(table[high >> 32]), 3);
  };
  return _mm256_set_m128i(four(_mm256_extracti128_si256(index, 1)), four(_mm256_castsi256_si128(index)));
}

template <typename Id>
GLT_WIDE int64_t wide_candidates(const Id* id, int64_t n, const uint32_t* bits, int shift, uint64_t last,
                                 uint32_t* position, uint64_t& signs) {
  const __m256i multiplier = _mm256_set1_epi32(static_cast<int>(kMultiplier)), low_five = _mm256_set1_epi32(31);
  const __m128i by = _mm_cvtsi32_si128(shift);
  __m256i lasts, sign = _mm256_setzero_si256();
  if constexpr (sizeof(Id) == 4)
    lasts = _mm256_set1_epi32(static_cast<int>(std::min<int64_t>(static_cast<int64_t>(last), INT32_MAX)));
  else
    lasts = _mm256_set1_epi64x(static_cast<int64_t>(last));
  const int64_t whole = n / kLanes * kLanes;
  int64_t num_found = 0;
  for (int64_t i = 0; i < whole; i += kLanes) {
    const __m256i hashes = _mm256_mullo_epi32(low_halves(id + i, lasts, sign), multiplier);
    const __m256i bit = _mm256_srl_epi32(hashes, by);
    const __m256i word = look_up(bits, _mm256_srli_epi32(bit, 5));
    const __m256i to_top = _mm256_sllv_epi32(word, _mm256_andnot_si256(bit, low_five));
    const auto mask = static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(to_top)));
    num_found += write_lanes(mask, i, position + num_found);
  }
  const __m256d tops = sizeof(Id) == 4 ? _mm256_castsi256_pd(_mm256_or_si256(sign, _mm256_slli_epi64(sign, 32)))
                                       : _mm256_castsi256_pd(sign);
  if (_mm256_movemask_pd(tops)) signs |= uint64_t{1} << 63;
  return plain_candidates(id, whole, n, bits, shift, last, position, num_found, signs);
}

#endif

}  // namespace

void Members::build(const int64_t* node, const uint32_t* tree, int64_t n) {
  const auto group_of = [&](int64_t i) { return tree ? static_cast<int64_t>(tree[i]) : 0; };
  int64_t num_groups = 0;
  for (int64_t i = 0; i < n; ++i) num_groups = std::max(num_groups, group_of(i) + 1);
  groups_.resize(num_groups);
  std::fill_n(groups_.data(), num_groups, Group{0, 0, 0, 0});
  for (int64_t i = 0; i < n; ++i) ++groups_[group_of(i)].size;
  int64_t num_words = 0, num_members = 0;
  for (Group* group = groups_.data(); group != groups_.end(); ++group) {
    const auto num_bits = static_cast<uint64_t>(group->size) * kBitsPerNode;
    const int width = std::clamp<int>(std::bit_width(num_bits), kMinWidth, kMaxWidth);
    const int64_t size = std::exchange(group->size, 0);  // counted anew below
    *group = {num_members, 0, num_words, 32 - width};
    num_members += size;
    num_words += int64_t{1} << (width - 5);
  }
  members_.resize(num_members);
  slots_.resize(num_members);
  bits_.resize(num_words);
  set_before_.resize(num_words);
  std::fill_n(bits_.data(), num_words, 0u);
  for (int64_t i = 0; i < n; ++i) {
    Group& group = groups_[group_of(i)];
    members_[group.first + group.size++] = {node[i], static_cast<uint32_t>(i)};
    const uint32_t bit = hash(node[i]) >> group.shift;
    bits_[group.first_word + (bit >> 5)] |= 1u << (bit & 31);
  }
  for (Group* group = groups_.data(); group != groups_.end(); ++group) {
    Member *first = members_.data() + group->first, *last = first + group->size;
    std::sort(first, last,
              [](const Member& a, const Member& b) { return a.id != b.id ? a.id < b.id : a.local < b.local; });
    last = std::unique(first, last, [](const Member& a, const Member& b) { return a.id == b.id; });
    group->size = last - first;
    place(*group);
  }
}

void Members::place(const Group& group) {
  constexpr uint32_t kFree = UINT32_MAX;  // of `next`
  const uint32_t* bits = bits_.data() + group.first_word;
  uint32_t* set_before = set_before_.data() + group.first_word;
  uint32_t num_set = 0;
  for (int64_t word = 0; word < int64_t{1} << (32 - group.shift - 5); ++word) {
    set_before[word] = num_set;
    num_set += static_cast<uint32_t>(std::popcount(bits[word]));
  }
  Slot* slots = slots_.data() + group.first;
  std::fill_n(slots, group.size, Slot{0, 0, kFree});
  const Member* member = members_.data() + group.first;
  for (int64_t i = 0; i < group.size; ++i) {
    Slot& first = slots[slot_of(bits, set_before, hash(member[i].id) >> group.shift)];
    if (first.next == kFree) {
      first = {member[i].id, member[i].local, 0};
    } else {
      slots[num_set] = {member[i].id, member[i].local, first.next};
      first.next = num_set++;
    }
  }
}

template <typename Id>
int64_t Members::select(const Id* id, int64_t n, uint32_t tree, int64_t num_ids, uint32_t* position, uint32_t* local,
                        bool& all_known) const {
  static constexpr uint32_t kNone[1 << (kMinWidth - 5)] = {};  // of a tree without nodes
  Lookup in{kNone, kNone, nullptr, 32 - kMinWidth};
  if (tree < groups_.size()) {
    const Group& group = groups_[tree];
    in = {bits_.data() + group.first_word, set_before_.data() + group.first_word, slots_.data() + group.first,
          group.shift};
  }
  const uint64_t last = static_cast<uint64_t>(num_ids) - 1;
  uint64_t signs = 0;
  int64_t num_found;
#if defined(__x86_64__)
  if (has_lanes())
    num_found =
        wide_keep_found(id, in, wide_candidates(id, n, in.bits, in.shift, last, position, signs), position, local);
  else
#endif
    num_found =
        keep_found(id, in, plain_candidates(id, 0, n, in.bits, in.shift, last, position, 0, signs), position, local);
  all_known = signs >> 63 == 0;
  return num_found;
}

template int64_t Members::select(const int32_t*, int64_t, uint32_t, int64_t, uint32_t*, uint32_t*, bool&) const;
template int64_t Members::select(const int64_t*, int64_t, uint32_t, int64_t, uint32_t*, uint32_t*, bool&) const;

}  // namespace glt
