#include "core/row_draws.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <vector>

#include "core/pick_rules.h"
#include "core/rng.h"
#include "core/wide.h"

namespace glt {
namespace {

#if defined(__x86_64__)

constexpr int64_t kGroup = 4, kGroups = kLanes / kGroup;  // rows in a register; registers that do not wait for another

constexpr int kRounds = 10;

// The keys of the rounds of four blocks of Philox. As of the blocks' words, what counts is the low half of each 64-bit
// lane, where the multiplier wants it.
struct RoundKeys {
  __m256i k0[kRounds], k1[kRounds];

  GLT_WIDE void set(__m256i key) {
    k0[0] = key, k1[0] = _mm256_srli_epi64(key, 32);
    for (int round = 1; round < kRounds; ++round) {
      k0[round] = _mm256_add_epi32(k0[round - 1], _mm256_set1_epi32(static_cast<int>(0x9E3779B9)));
      k1[round] = _mm256_add_epi32(k1[round - 1], _mm256_set1_epi32(static_cast<int>(0xBB67AE85)));
    }
  }
};

struct Blocks {
  __m256i c0, c1, c2, c3;
};

// philox() of each lane. The high halves that it leaves mean nothing.
GLT_WIDE void philox_of(Blocks (&blocks)[kGroups], const RoundKeys (&keys)[kGroups]) {
  for (int round = 0; round < kRounds; ++round) {
    for (int g = 0; g < kGroups; ++g) {
      Blocks& b = blocks[g];
      const __m256i p0 = _mm256_mul_epu32(b.c0, _mm256_set1_epi64x(0xD2511F53));
      const __m256i p1 = _mm256_mul_epu32(b.c2, _mm256_set1_epi64x(0xCD9E8D57));
      b.c0 = _mm256_xor_si256(_mm256_srli_epi64(p1, 32), _mm256_xor_si256(b.c1, keys[g].k0[round]));
      b.c2 = _mm256_xor_si256(_mm256_srli_epi64(p0, 32), _mm256_xor_si256(b.c3, keys[g].k1[round]));
      b.c1 = p1;
      b.c3 = p0;
    }
  }
}

GLT_WIDE __m256i load(const int64_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}
GLT_WIDE __m256i load(const uint32_t* from) {
  return _mm256_cvtepu32_epi64(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

// The keys that kLanes rows draw under: batch_key, or tree_key() of each where `tree` is not null.
GLT_WIDE void set_keys(uint64_t batch_key, const uint32_t* tree, RoundKeys (&keys)[kGroups]) {
  for (RoundKeys& of_group : keys) of_group.set(_mm256_set1_epi64x(static_cast<int64_t>(batch_key)));
  if (!tree) return;
  Blocks blocks[kGroups];  // tree_key(), the first two words of a block
  for (int g = 0; g < kGroups; ++g) {
    const __m256i zero = _mm256_setzero_si256();
    blocks[g] = {load(tree + g * kGroup), zero, zero,
                 _mm256_set1_epi64x(0xFFFF0000u | static_cast<uint32_t>(Purpose::kTree))};
  }
  philox_of(blocks, keys);
  for (int g = 0; g < kGroups; ++g)
    keys[g].set(_mm256_blend_epi32(blocks[g].c0, _mm256_slli_epi64(blocks[g].c1, 32), 0b10101010));
}

// Blocks number `block` of the draws of kLanes nodes: draws 2 * block and 2 * block + 1 of each.
GLT_WIDE void draw_blocks(const int64_t* node, uint32_t stream, int64_t block, const RoundKeys (&keys)[kGroups],
                          Blocks (&blocks)[kGroups]) {
  for (int g = 0; g < kGroups; ++g) {
    const __m256i word = load(node + g * kGroup);
    blocks[g] = {word, _mm256_srli_epi64(word, 32), _mm256_set1_epi64x(block), _mm256_set1_epi64x(stream)};
  }
  philox_of(blocks, keys);
}

// Writes num_blocks blocks of the draws of kLanes nodes, from a stride to the next of each.
GLT_WIDE void make_lanes(const int64_t* node, const uint32_t* tree, const HopSpec& spec, int64_t num_blocks,
                         uint64_t* out, size_t stride) {
  RoundKeys keys[kGroups];
  set_keys(spec.batch_key, tree, keys);
  for (int64_t block = 0; block < num_blocks; ++block, out += 2) {
    Blocks blocks[kGroups];
    draw_blocks(node, NodeDraws::stream_of(spec.hop, spec.edge_type), block, keys, blocks);
    for (int g = 0; g < kGroups; ++g) {
      const __m256i even = _mm256_blend_epi32(blocks[g].c0, _mm256_slli_epi64(blocks[g].c1, 32), 0b10101010);
      const __m256i odd = _mm256_blend_epi32(blocks[g].c2, _mm256_slli_epi64(blocks[g].c3, 32), 0b10101010);
      const __m256i low = _mm256_unpacklo_epi64(even, odd), high = _mm256_unpackhi_epi64(even, odd);
      const auto at = [&](size_t lane) { return reinterpret_cast<__m128i*>(out + (g * kGroup + lane) * stride); };
      _mm_storeu_si128(at(0), _mm256_castsi256_si128(low));
      _mm_storeu_si128(at(1), _mm256_castsi256_si128(high));
      _mm_storeu_si128(at(2), _mm256_extracti128_si256(low, 1));
      _mm_storeu_si128(at(3), _mm256_extracti128_si256(high, 1));
    }
  }
}

#endif

constexpr int64_t kCompareAll = 32;  // picks up to here: comparing with each is quicker than a set

// A set of up to k picks, for fan-outs where comparing with every earlier pick would cost more than hashing.
class PickSet {
 public:
  explicit PickSet(int64_t k) : slots_(std::bit_ceil(2 * static_cast<uint64_t>(k)), -1) {}

  // Adds `pick`; false if it was there.
  bool insert(int64_t pick) {
    const uint64_t mask = slots_.size() - 1;
    for (uint64_t at = (static_cast<uint64_t>(pick) * 0x9E3779B97F4A7C15u >> 20) & mask;; at = (at + 1) & mask) {
      if (slots_[at] == pick) return false;
      if (slots_[at] < 0) {
        slots_[at] = pick;
        return true;
      }
    }
  }

 private:
  std::vector<int64_t> slots_;
};

// Rows that draw, all of them k edges of fewer than 2^32, side by side.
struct DrawnRows {
  int64_t node[kChunkRows];
  uint32_t tree[kChunkRows];    // as of Rows, where that has some
  uint32_t degree[kChunkRows];  // edges to choose from
  int64_t begin[kChunkRows];    // where these are
  int64_t out[kChunkRows];      // where the picks go, in `position`
  int64_t n = 0;
  int64_t k;
  bool replace, has_tree;
  uint64_t batch_key;
  uint32_t hop, edge_type;
};

#if defined(__x86_64__)

// bounded() of the draws of which `low` and `high` are the halves, by bounds below 2^32.
GLT_WIDE inline __m256i bounded_by(__m256i low, __m256i high, __m256i bound) {
  const __m256i carried = _mm256_srli_epi64(_mm256_mul_epu32(low, bound), 32);
  return _mm256_srli_epi64(_mm256_add_epi64(_mm256_mul_epu32(high, bound), carried), 32);
}

// Draws for the rows [first, first + kLanes), a lane each: what tree_key, pick_any and floyd_small say. Those from
// rows.n on mean nothing.
GLT_WIDE void draw_lanes(const DrawnRows& rows, int64_t first, const RoundKeys (&keys)[kGroups], int64_t* position) {
  const uint32_t stream = NodeDraws::stream_of(rows.hop, rows.edge_type);
  const int64_t k = rows.k, end = std::min(first + kLanes, rows.n);
  alignas(32) uint64_t pick[kCompareAll + 1][kLanes];
  for (int64_t i = 0; i < k; i += 2) {
    Blocks blocks[kGroups];
    draw_blocks(rows.node + first, stream, i / 2, keys, blocks);
    for (int64_t d = i; d < i + 2; ++d) {
      for (int g = 0; g < kGroups; ++g) {
        const Blocks& b = blocks[g];
        const __m256i low = d == i ? b.c0 : b.c2, high = d == i ? b.c1 : b.c3;
        const __m256i degree = load(rows.degree + first + g * kGroup);
        __m256i* to = reinterpret_cast<__m256i*>(pick[d] + g * kGroup);
        if (rows.replace) {
          _mm256_store_si256(to, bounded_by(low, high, degree));
          continue;
        }
        const __m256i last = _mm256_add_epi64(degree, _mm256_set1_epi64x(d - k));  // taken in place of a taken one
        const __m256i drawn = bounded_by(low, high, _mm256_add_epi64(last, _mm256_set1_epi64x(1)));
        __m256i taken = _mm256_setzero_si256();
        for (int64_t j = 0; j < d; ++j) {
          const __m256i before = _mm256_load_si256(reinterpret_cast<const __m256i*>(pick[j] + g * kGroup));
          taken = _mm256_or_si256(taken, _mm256_cmpeq_epi64(before, drawn));
        }
        _mm256_store_si256(to, _mm256_blendv_epi8(drawn, last, taken));
      }
    }
  }
  for (int64_t row = first; row < end; ++row) {
    const int64_t begin = rows.begin[row], lane = row - first;
    int64_t* out = position + rows.out[row];
    for (int64_t j = 0; j < k; ++j) out[j] = begin + static_cast<int64_t>(pick[j][lane]);
  }
}

GLT_WIDE void draw_by_lanes(DrawnRows& rows, int64_t* position) {
  for (int64_t i = rows.n; i % kLanes != 0; ++i) rows.node[i] = rows.tree[i] = rows.degree[i] = 0;
  RoundKeys keys[kGroups];
  for (int64_t first = 0; first < rows.n; first += kLanes) {
    if (first == 0 || rows.has_tree) set_keys(rows.batch_key, rows.has_tree ? rows.tree + first : nullptr, keys);
    draw_lanes(rows, first, keys, position);
  }
}

#endif

void draw_one_by_one(const DrawnRows& rows, int64_t* position) {
  uint64_t bits[kCompareAll + 1];
  for (int64_t i = 0; i < rows.n; ++i) {
    const uint64_t key = rows.has_tree ? tree_key(rows.batch_key, rows.tree[i]) : rows.batch_key;
    NodeDraws(key, rows.hop, rows.edge_type, static_cast<uint64_t>(rows.node[i])).fill(0, rows.k, bits);
    int64_t* out = position + rows.out[i];
    if (rows.replace)
      for (int64_t j = 0; j < rows.k; ++j) out[j] = pick_any(rows.begin[i], rows.degree[i], bits[j]);
    else
      floyd_small(rows.begin[i], int64_t{rows.degree[i]}, rows.k, bits, out);
  }
}

// Rows that give all of their edges first, then the others, side by side. False where a row is too long for that.
bool pick_together(const Rows& rows, const HopSpec& spec, const uint32_t* counts, const RowSpans& spans,
                   int64_t* position) {
  DrawnRows drawn;
  drawn.k = spec.num_neighbors;
  drawn.replace = spec.replace, drawn.has_tree = rows.tree;
  drawn.batch_key = spec.batch_key, drawn.hop = spec.hop, drawn.edge_type = spec.edge_type;
  int64_t whole[kChunkRows], whole_out[kChunkRows], num_whole = 0, n = 0, out = 0;
  uint64_t all = 0;
  for (int64_t i = 0; i < rows.n; ++i) {
    // Whether a row has more edges than it gives is unpredictable: a branch would cost more than stores.
    const int64_t eligible = spans.eligible[i];
    const bool draws = is_drawn(eligible, counts[i], spec.replace);
    if (rows.tree) drawn.tree[n] = rows.tree[i];
    drawn.node[n] = rows.node[i];
    drawn.degree[n] = static_cast<uint32_t>(eligible);
    drawn.begin[n] = spans.begin[i];
    drawn.out[n] = whole_out[num_whole] = out;
    whole[num_whole] = i;
    n += draws;
    num_whole += !draws & (counts[i] > 0);
    out += counts[i];
    all |= static_cast<uint64_t>(eligible);
  }
  if (all > UINT32_MAX) return false;
  for (int64_t w = 0; w < num_whole; ++w) {
    const int64_t begin = spans.begin[whole[w]];
    write_run(position + whole_out[w], counts[whole[w]], [&](int64_t j) { return begin + j; });
  }
  drawn.n = n;
#if defined(__x86_64__)
  if (has_lanes()) {
    draw_by_lanes(drawn, position);
    return true;
  }
#endif
  draw_one_by_one(drawn, position);
  return true;
}

void pick_one_by_one(const Rows& rows, const HopSpec& spec, const uint32_t* counts, const RowSpans& spans,
                     int64_t* position) {
  for (int64_t i = 0; i < rows.n; position += counts[i], ++i) {
    const int64_t begin = spans.begin[i], eligible = spans.eligible[i], count = counts[i];
    if (!is_drawn(eligible, count, spec.replace)) {
      std::iota(position, position + count, begin);
      continue;
    }
    NodeDraws draws = draws_of(rows, i, spec);
    if (spec.replace)
      for (int64_t j = 0; j < count; ++j) position[j] = pick_any(begin, eligible, draws(static_cast<uint32_t>(j)));
    else
      pick_distinct(begin, eligible, count, draws, 0, position);
  }
}

}  // namespace

void pick_distinct(int64_t begin, int64_t n, int64_t k, NodeDraws& draws, uint32_t first_draw, int64_t* pick) {
  if (k <= kCompareAll) {
    uint64_t bits[kCompareAll + 2];
    const int64_t odd = first_draw & 1;
    draws.fill(first_draw & ~1u, k + odd, bits);
    floyd_small(begin, n, k, bits + odd, pick);
    return;
  }
  PickSet picks(k);
  for (int64_t i = 0; i < k; ++i) {
    int64_t drawn = floyd_drawn(n, k, i, draws(first_draw + static_cast<uint32_t>(i)));
    if (!picks.insert(drawn)) picks.insert(drawn = n - k + i);
    pick[i] = begin + drawn;
  }
}

void pick_uniformly(const Rows& rows, const HopSpec& spec, const uint32_t* counts, const RowSpans& spans,
                    int64_t* position) {
  const int64_t k = spec.num_neighbors;
  if (k <= 0 || k > kCompareAll || !pick_together(rows, spec, counts, spans, position))
    pick_one_by_one(rows, spec, counts, spans, position);
  if (spans.excluded.size() == 0) return;
  for (int64_t i = 0; i < rows.n; position += counts[i], ++i)
    if (spans.num_excluded(i) > 0) spans.skip_excluded(i, position, counts[i]);
}

void RowDraws::make(const Rows& rows, const std::vector<int64_t>& of, const HopSpec& spec, int64_t k) {
  constexpr size_t kTogether = 8;
  constexpr int64_t kMostWasted = 64;  // draws of a lane that no row needs
  const size_t in_lanes = k <= kMostWasted ? of.size() : of.size() / kTogether * kTogether;  // rows
  stride_ = (k + 1) / 2 * 2;
  bits_.resize((in_lanes < of.size() ? of.size() : (of.size() + kTogether - 1) / kTogether * kTogether) * stride_);
  for (size_t first = 0; first < of.size(); first += kTogether) {
    uint64_t* out = bits_.data() + first * stride_;
    const size_t n = std::min(kTogether, of.size() - first);
#if defined(__x86_64__)
    static_assert(kTogether == kLanes);
    if (has_lanes() && first < in_lanes) {
      int64_t node[kLanes] = {};
      uint32_t tree[kLanes] = {};
      for (size_t j = 0; j < n; ++j) {
        node[j] = rows.node[of[first + j]];
        if (rows.tree) tree[j] = rows.tree[of[first + j]];
      }
      make_lanes(node, rows.tree ? tree : nullptr, spec, stride_ / 2, out, stride_);
      continue;
    }
#endif
    for (size_t j = 0; j < n; ++j) draws_of(rows, of[first + j], spec).fill(0, stride_, out + j * stride_);
  }
}

}  // namespace glt
