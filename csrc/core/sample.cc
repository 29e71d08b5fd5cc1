#include "core/sample.h"

#include <algorithm>

#include "core/check.h"
#include "core/floyd.h"
#include "core/prefetch.h"
#include "core/runs.h"
#include "core/weighted_draws.h"

namespace glt {
namespace {

// The draws of the rows that need some: each as many as the others. False where they are better made row by row.
bool draw_ahead(const Rows& rows, const HopSpec& spec, const uint32_t* counts, RowScratch& scratch) {
  if (spec.num_neighbors > kCompareAll || spec.num_neighbors <= 0) return false;
  int64_t node[kChunkRows], n = 0;
  uint64_t key[kChunkRows];
  for (int64_t i = 0; i < rows.n; ++i) {
    // Whether a row has more edges than it gives is unpredictable: a branch would cost more than a store.
    if (rows.tree) key[n] = key_of(rows, i, spec);
    node[n] = rows.node[i];
    n += spec.replace ? counts[i] > 0 : counts[i] < scratch.spans.num_eligible(i);
  }
  scratch.draws.fill(node, rows.tree ? key : nullptr, spec.batch_key, n, spec.hop, spec.edge_type, spec.num_neighbors);
  return true;
}

// Writes the positions of counts[i] picks of every row; every edge is equally likely.
void pick_uniformly(const Rows& rows, const HopSpec& spec, const uint32_t* counts, RowScratch& scratch) {
  PickSet picks;
  const bool drawn = draw_ahead(rows, spec, counts, scratch);
  int64_t num_drawn = 0;
  int64_t* position = scratch.position.data();
  for (int64_t i = 0; i < rows.n; ++i) {
    const int64_t begin = scratch.spans.begin[i], eligible = scratch.spans.num_eligible(i), count = counts[i];
    const auto place = [&](uint64_t bits) { return pick_any(begin, eligible, bits); };
    if (count == 0 || takes_whole(eligible, count, spec.replace)) {
      write_run(position, count, [&](int64_t j) { return begin + j; });
    } else if (drawn) {
      const uint64_t* bits = scratch.draws.of(num_drawn++);
      if (spec.replace)
        for (int64_t j = 0; j < count; ++j) position[j] = place(bits[j]);
      else
        floyd_few(begin, eligible, count, bits, position);
    } else {
      NodeDraws draws = draws_of(rows, i, spec);
      if (spec.replace)
        for (int64_t j = 0; j < count; ++j) position[j] = place(draws(static_cast<uint32_t>(j)));
      else
        floyd(begin, eligible, count, draws, 0, position, picks);
    }
    if (scratch.spans.num_excluded(i) > 0) scratch.spans.skip_excluded(i, position, count);
    position += count;
  }
}

}  // namespace

void check_spec(const HopSpec& spec) {
  require(spec.num_neighbors >= -1 && spec.num_neighbors <= INT32_MAX, "num_neighbors[", spec.hop,
          "] = ", spec.num_neighbors, ": expected -1 (all) or a count in [0, 2^31)");
  require(!(spec.replace && spec.num_neighbors < 0), "num_neighbors[", spec.hop,
          "] = -1 with replace = True: drawing with replacement needs a count");
  require(spec.hop < 256, "num_neighbors has over 256 hops");
  require(spec.edge_type < 65535, "edge_type = ", spec.edge_type, ": expected below 65535");
}

void sample_rows(const CsrView& csr, const Rows& rows, const HopSpec& spec, RowScratch& scratch, RowSamples& out,
                 const char* name, int64_t first_index) {
  const int64_t k = spec.num_neighbors;
  const bool by_time = csr.time && (rows.seed_time || spec.last);
  require(!by_time || !csr.weight_sum,
          "seed_time or last was given for edges with times and weights: expected one of the two, leave out the other");
  find_spans(csr, rows, spec.exclusions, by_time && spec.last ? k : -1, scratch.spans, name, first_index);
  out.count.reserve_more(rows.n);
  uint32_t* counts = out.count.end();
  int64_t total = 0;
  for (int64_t i = 0; i < rows.n; ++i) {
    const int64_t eligible = scratch.spans.num_eligible(i);
    const int64_t count = num_picks(eligible, k, spec.replace);
    require(count <= UINT32_MAX, name, "[", first_index + i, "] = ", rows.node[i], " has ", eligible,
            " edges: num_neighbors = -1 takes at most 2^32 - 1 of one node");
    counts[i] = static_cast<uint32_t>(count);
    total += count;
  }
  scratch.position.resize(total + kRunSlack);
  if (csr.weight_sum)
    pick_by_weight(csr, rows, spec, counts, scratch);
  else
    pick_uniformly(rows, spec, counts, scratch);

  const int64_t* position = scratch.position.data();
  std::visit(
      [&](auto* indices, auto* edge_ids) {
        const bool fetch_ids = spec.with_edge && csr.has_edge_ids;
        for (int64_t e = 0; e < total; ++e) {
          prefetch(indices + position[e]);
          if (fetch_ids) prefetch(edge_ids + position[e]);
        }
        out.neighbor.reserve_more(total);
        int64_t* neighbor = out.neighbor.end();
        for (int64_t e = 0; e < total; ++e) neighbor[e] = indices[position[e]];
        if (spec.with_edge) {
          out.edge.reserve_more(total);
          int64_t* edge = out.edge.end();
          if (fetch_ids)
            for (int64_t e = 0; e < total; ++e) edge[e] = edge_ids[position[e]];
          else
            std::copy_n(position, total, edge);
          out.edge.added(total);
        }
        out.neighbor.added(total);
      },
      csr.indices, csr.edge_ids);
  out.count.added(rows.n);
}

}  // namespace glt
