#include "core/hotness.h"

#include <algorithm>
#include <atomic>
#include <type_traits>
#include <variant>
#include <vector>

#include "core/check.h"
#include "core/memory.h"
#include "core/threads.h"

namespace glt {

EdgeChance::EdgeChance(const CsrView& csr, int64_t first, int64_t end, int64_t k, bool weighted, bool replace) {
  begin(weighted ? csr.weight_sum : nullptr, first, end, k, replace);
  finish(end - first, k, replace, [&](const auto& of) {
    TwoSums sum{0, 0};
    for (int64_t e = first; e < end; ++e) {
      const TwoSums one = of(e);
      sum = {sum.first + one.first, sum.second + one.second};
    }
    return sum;
  });
}

namespace {

constexpr int64_t kMaxHops = 256;
constexpr int64_t kRowsAtOnce = 1024;
constexpr int64_t kAhead = 16;  // edges whose neighbours are fetched early

// Shares nodes out to threads, each of which works with what make_work() made for it.
template <typename MakeWork>
void for_pieces(int64_t n, int num_threads, const MakeWork& make_work) {
  for_chunks_with(n, kRowsAtOnce, std::min<int64_t>(num_threads - 1, n / kRowsAtOnce), make_work);
}

// An atomic addition waits for all memory accesses before it, which a thread that is alone is spared.
template <bool kShared>
void add(int64_t* doubt, int64_t amount) {
  if constexpr (kShared) {
    std::atomic_ref<int64_t> sum(*doubt);
    if (sum.load(std::memory_order_relaxed) < kEnoughDoubt) sum.fetch_add(amount, std::memory_order_relaxed);
  } else {
    if (*doubt < kEnoughDoubt) *doubt += amount;
  }
}

template <bool kShared, typename Index>
class HopSpread {
 public:
  HopSpread(const HotnessHop& at, const Index* indices, int64_t* doubt)
      : at_(at), csr_(*at.csr), indices_(indices), doubt_(doubt) {}

  // Passes on what the nodes [first, end) were found with.
  void operator()(int64_t first, int64_t end) {
    for (int64_t v = first; v < end; ++v) {
      const int64_t begin = csr_.indptr[v], stop = csr_.indptr[v + 1];
      const float* found = at_.expanded + v * at_.num_columns;
      if (begin == stop || found[at_.hop] <= 0) continue;  // found by a later hop: another call
      for (int64_t j = 0; j <= at_.hop; ++j)
        chance_[j] = EdgeChance(csr_, begin, stop, at_.num_neighbors[j], at_.weighted, at_.replace);
      row(begin, stop, found);
    }
  }

 private:
  void row(int64_t begin, int64_t stop, const float* found) {
    const RowHotness rules{chance_,
                           at_.hop,
                           found,
                           at_.neighbor,
                           at_.num_columns,
                           at_.replace,
                           at_.mutual ? at_.back->indptr : nullptr,
                           at_.back_neighbors};
    const bool even = !at_.weighted || !csr_.weight_sum;
    const int64_t amount = even ? doubt_of(rules.taken(begin).once) : 0;
    for (int64_t e = begin; e < stop; ++e) {
      ask_ahead(e + kAhead);
      const int64_t u = indices_[e];
      if (found == at_.neighbor + u * at_.num_columns) continue;  // a loop finds no new node
      const bool again = edge_bit(at_.repeated, e), back = at_.hop > 0 && edge_bit(at_.mutual, e);
      add<kShared>(doubt_ + u, even && !again && !back ? amount : rules.doubt(e, u, again, back));
    }
  }

  void ask_ahead(int64_t e) const {
    if (e >= csr_.num_edges) return;
    prefetch(doubt_ + indices_[e]);
    if (at_.hop == 0 || !at_.mutual) return;
    prefetch(at_.neighbor + indices_[e] * at_.num_columns);
    prefetch(at_.back->indptr + indices_[e]);
  }

  const HotnessHop& at_;
  const CsrView& csr_;
  const Index* indices_;
  int64_t* doubt_;
  EdgeChance chance_[kMaxHops];
};

// For each node of the neighbours' type of `back`, those with an edge to it, node after node: indptr and ids.
struct Sources {
  std::vector<int64_t> indptr;
  std::vector<uint32_t> ids;

  explicit Sources(const CsrView& back) : indptr(back.num_neighbor_nodes + 1), ids(back.num_edges) {
    std::visit(
        [&](auto* indices) {
          for (int64_t e = 0; e < back.num_edges; ++e) ++indptr[indices[e] + 1];
          for (int64_t v = 0; v < back.num_neighbor_nodes; ++v) indptr[v + 1] += indptr[v];
          std::vector<int64_t> next(indptr.begin(), indptr.end() - 1);
          for (int64_t u = 0; u < back.num_nodes; ++u)
            for (int64_t e = back.indptr[u]; e < back.indptr[u + 1]; ++e)
              ids[next[indices[e]]++] = static_cast<uint32_t>(u);
        },
        back.indices);
  }
};

// Bits of consecutive edges, written a word at a time; the first and last word of a piece are shared with others.
class BitWriter {
 public:
  explicit BitWriter(uint64_t* words) : words_(words) {}
  ~BitWriter() { flush(); }
  void set(int64_t bit) {
    if (bit >> 6 != word_) {
      flush();
      word_ = bit >> 6;
    }
    bits_ |= uint64_t{1} << (bit & 63);
  }

 private:
  void flush() {
    if (bits_) std::atomic_ref<uint64_t>(words_[word_]).fetch_or(bits_, std::memory_order_relaxed);
    bits_ = 0;
  }

  uint64_t* words_;
  int64_t word_ = 0;
  uint64_t bits_ = 0;
};

}  // namespace

void add_doubt(const HotnessHop& at, int64_t* doubt, int num_threads) {
  require(at.hop >= 0 && at.hop < kMaxHops && at.hop < at.num_columns, "hop = ", at.hop, ": expected 0 to ",
          std::min(kMaxHops, at.num_columns) - 1);
  const auto spread_all = [&]<typename Index>(const Index* indices, auto shared) {
    for_pieces(at.csr->num_nodes, num_threads,
               [&] { return HopSpread<decltype(shared)::value, Index>(at, indices, doubt); });
  };
  std::visit(
      [&](auto* indices) {
        if (num_threads > 1)
          spread_all(indices, std::true_type{});
        else
          spread_all(indices, std::false_type{});
      },
      at.csr->indices);
}

void find_mutual(const CsrView& csr, const CsrView& back, uint64_t* mutual, int num_threads) {
  require(back.num_nodes <= UINT32_MAX, "hotness: ", back.num_nodes, " nodes of one type: expected below 2^32");
  std::fill_n(mutual, (csr.num_edges + 63) / 64, 0);
  const Sources sources(back);
  std::visit(
      [&](auto* indices) {
        for_pieces(csr.num_nodes, num_threads, [&] {
          // By node: the last one that this one has an edge to.
          return [&, seen_by = std::vector<uint32_t>(back.num_nodes, UINT32_MAX)](int64_t first, int64_t end) mutable {
            BitWriter bits(mutual);
            for (int64_t v = first; v < end; ++v) {
              for (int64_t i = sources.indptr[v]; i < sources.indptr[v + 1]; ++i)
                seen_by[sources.ids[i]] = static_cast<uint32_t>(v);
              for (int64_t e = csr.indptr[v]; e < csr.indptr[v + 1]; ++e)
                if (seen_by[indices[e]] == static_cast<uint32_t>(v)) bits.set(e);
            }
          };
        });
      },
      csr.indices);
}

void find_repeated(const CsrView& csr, uint64_t* repeated, int num_threads) {
  require(csr.num_nodes <= UINT32_MAX, "hotness: ", csr.num_nodes, " nodes of one type: expected below 2^32");
  std::fill_n(repeated, (csr.num_edges + 63) / 64, 0);
  std::visit(
      [&](auto* indices) {
        for_pieces(csr.num_nodes, num_threads, [&] {
          // By node: the last one that has an edge to it.
          return [&, seen_by = std::vector<uint32_t>(csr.num_neighbor_nodes, UINT32_MAX)](int64_t first,
                                                                                          int64_t end) mutable {
            BitWriter bits(repeated);
            for (int64_t v = first; v < end; ++v)
              for (int64_t e = csr.indptr[v]; e < csr.indptr[v + 1]; ++e) {
                uint32_t& last = seen_by[indices[e]];
                if (last == static_cast<uint32_t>(v)) bits.set(e);
                last = static_cast<uint32_t>(v);
              }
          };
        });
      },
      csr.indices);
}

}  // namespace glt
