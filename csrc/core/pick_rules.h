// What a sampler decides at random: how many edges a row gives, and which; and the nodes of negative edges. Host and
// device share every decision, so a batch is the same on both. sample_rows in sample.cc chooses the
// rule of a row.
#pragma once

#include <cstdint>

#include "core/check.h"
#include "core/rng.h"

#if defined(__CUDA_ARCH__)
#define GLT_UNROLL _Pragma("unroll")
#else
#define GLT_UNROLL
#endif

namespace glt {

// The key that nodes of one tree draw under. Trees have keys of their own, so that what one takes tells nothing of
// another.
GLT_HOST_DEVICE uint64_t tree_key(uint64_t batch_key, uint32_t tree) {
  return derive_key(batch_key, Purpose::kTree, 0, tree);
}

// Edges that a row with `eligible` ones gives; k < 0: all.
GLT_HOST_DEVICE int64_t num_picks(int64_t eligible, int64_t k, bool replace) {
  return k < 0 ? eligible : eligible == 0 ? 0 : replace || k < eligible ? k : eligible;
}

// A row that gives all its edges, each once, gives them in order and draws nothing.
GLT_HOST_DEVICE bool takes_whole(int64_t eligible, int64_t count, bool replace) {
  return !replace & (count == eligible);
}

// A row draws unless it gives all of its edges, or none.
GLT_HOST_DEVICE bool is_drawn(int64_t eligible, int64_t count, bool replace) {
  return (count > 0) & !takes_whole(eligible, count, replace);
}

// The edge, counted from `begin`, that a draw with replacement takes.
GLT_HOST_DEVICE int64_t pick_any(int64_t begin, int64_t eligible, uint64_t bits) {
  return begin + static_cast<int64_t>(bounded(bits, static_cast<uint64_t>(eligible)));
}

// What draw i of Floyd's algorithm (Bentley & Floyd, CACM 30(9), 1987) for k of n says, before it is known to be taken.
GLT_HOST_DEVICE int64_t floyd_drawn(int64_t n, int64_t k, int64_t i, uint64_t bits) {
  return static_cast<int64_t>(bounded(bits, static_cast<uint64_t>(n - k + i + 1)));
}

// k distinct numbers of [begin, begin + n), k <= n, each subset equally likely, by k draws; draws[i] are random bits.
// Compares each with all before it: for small k. Unrolls where k is known when this is compiled.
template <typename T, typename Draws>
GLT_HOST_DEVICE void floyd_small(T begin, T n, T k, const Draws& draws, T* pick) {
  GLT_UNROLL
  for (T i = 0; i < k; ++i) {
    const T drawn = begin + static_cast<T>(floyd_drawn(n, k, i, draws[i]));
    bool taken = false;
    GLT_UNROLL
    for (T j = 0; j < i; ++j) taken |= pick[j] == drawn;
    pick[i] = taken ? begin + n - k + i : drawn;
  }
}

// Pick i of the same, from drawn[0, i] alone: the picks of a row need not wait for each other. Step i finds its number
// taken if an earlier step drew the same (whether that step took it or found it taken, it is in the set since), or if
// an earlier step j, finding its own taken, took n - k + j in its place, and that is the number.
template <typename T, typename Drawn>
GLT_HOST_DEVICE T floyd_pick(T n, T k, T i, const Drawn& drawn) {
  for (T step = i;;) {
    const T number = drawn[step];
    bool taken = false;
    for (T j = 0; j < step; ++j)
      taken |= drawn[j] == number;  // no branch: side by side, threads go on to the end anyway
    if (taken) return n - k + i;
    // The step that may have taken this number in place of its own.
    if (number < n - k || number - (n - k) >= step) return drawn[i];
    step = number - (n - k);
  }
}

// Candidates for the ends of negative edges. The node that stands in slot i of a batch's negatives is a function of
// (batch key, side, i, attempt): all who ask get the same answer, and a candidate that turns out to be an edge is
// replaced by that of the next attempt. Within attempt a, redraw r is the draw a + r * kRedraw.
struct NegativeDraws {
  static constexpr uint32_t kRedraw = 1 << 16;
  uint64_t batch_key = 0;
  uint32_t side = 0;                     // 0: sources, 1: destinations
  int64_t num_nodes = 0;                 // candidates are in [0, num_nodes)
  const uint64_t* weight_sum = nullptr;  // [num_nodes], inclusive prefix sums; null: all nodes are equally likely

  GLT_HOST_DEVICE uint64_t key() const { return derive_key(batch_key, Purpose::kNegative, side, 0); }
  GLT_HOST_DEVICE uint64_t total() const {
    return num_nodes < 1 ? 0 : weight_sum ? weight_sum[num_nodes - 1] : static_cast<uint64_t>(num_nodes);
  }
  // `key` and `total` are those above, asked for once.
  GLT_HOST_DEVICE int64_t node(uint64_t key, uint64_t total, int64_t slot, uint32_t attempt) const {
    NodeDraws draws(key, /*hop=*/0, /*edge_type=*/0, static_cast<uint64_t>(slot));
    const uint64_t u = bounded(draws(attempt), total);
    if (!weight_sum) return static_cast<int64_t>(u);
    const uint64_t* first = weight_sum;  // the first sum above u
    for (int64_t left = num_nodes; left > 0;) {
      const int64_t half = left / 2;
      const bool below = first[half] <= u;
      first += below ? half + 1 : 0;
      left = below ? left - half - 1 : half;
    }
    return first - weight_sum;
  }

  // Throws std::invalid_argument when there is no node to draw or all weigh nothing.
  void fill(const int64_t* slot, const int64_t* attempt, int64_t n, int64_t* out) const {
    require(num_nodes >= 1 || n == 0, "num_nodes = ", num_nodes, ": negatives need a node to draw");
    const uint64_t sum = total();
    require(sum > 0 || n == 0, "all ", num_nodes, " weights are zero: negatives need a node to draw");
    const uint64_t stream = key();
    for (int64_t i = 0; i < n; ++i) {
      require(attempt[i] >= 0 && attempt[i] <= UINT32_MAX, "attempts[", i, "] = ", attempt[i],
              ": expected 0 to 2^32 - 1");
      out[i] = node(stream, sum, slot[i], static_cast<uint32_t>(attempt[i]));
    }
  }
};

}  // namespace glt
