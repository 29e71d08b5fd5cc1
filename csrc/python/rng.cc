#include "core/rng.h"

#include <pybind11/pybind11.h>

#include <array>

#include "core/negatives.h"
#include "core/shuffle.h"
#include "python/arrays.h"
#include "python/without_gil.h"

namespace glt::python {

void register_rng(py::module_& m) {
  m.def(
      "philox",
      [](std::array<uint32_t, 4> c, uint64_t key) {
        const Bits128 bits = philox({{c[0], c[1], c[2], c[3]}}, key);
        return py::make_tuple(bits.word[0], bits.word[1], bits.word[2], bits.word[3]);
      },
      py::arg("counter"), py::arg("key"));
  m.def(
      "batch_key",
      [](uint64_t rng_seed, uint32_t epoch, uint64_t batch) {
        return derive_key(rng_seed, Purpose::kBatchKey, epoch, batch);
      },
      py::arg("rng_seed"), py::arg("epoch"), py::arg("batch"));
  m.def(
      "rank_seed",
      [](uint64_t job_seed, uint32_t rank) { return derive_key(job_seed, Purpose::kRankSeed, rank, 0) >> 1; },
      py::arg("job_seed"), py::arg("rank"));
  m.def(
      "shuffle",
      [](py::array items, uint64_t rng_seed, uint32_t epoch) {
        int64_t* p = write<int64_t>(items, "items");
        const int64_t n = items.size();
        WithoutGil nogil;
        shuffle(p, n, derive_key(rng_seed, Purpose::kShuffle, epoch, 0));
      },
      py::arg("items"), py::arg("rng_seed"), py::arg("epoch"));
  m.def(
      "host_draws",
      [](const py::array& nodes, const py::array& bounds, uint64_t batch_key, uint32_t hop, int draws, py::array out) {
        const int64_t n = nodes.size();
        require_size(bounds, "bounds", n);
        require_size(out, "out", n * draws);
        const auto* node = read<int64_t>(nodes, "nodes");
        const auto* bound = read<uint64_t>(bounds, "bounds");
        auto* result = write<uint64_t>(out, "out");
        for (int64_t i = 0; i < n; ++i) {
          NodeDraws draw(batch_key, hop, 0, static_cast<uint64_t>(node[i]));
          for (int d = 0; d < draws; ++d) result[i * draws + d] = bounded(draw(static_cast<uint32_t>(d)), bound[i]);
        }
      },
      "The first draws of each node, bounded: what sampling decides by.", py::arg("nodes"), py::arg("bounds"),
      py::arg("batch_key"), py::arg("hop"), py::arg("draws"), py::arg("out"));
  m.def(
      "negative_draws",
      [](uint64_t batch_key, int side, const py::array& slots, int64_t attempt, int64_t num_nodes,
         const std::optional<py::array>& weight_sum, py::array out) {
        require(side == 0 || side == 1, "side = ", side, ": expected 0 (source) or 1 (destination)");
        require(attempt >= 0 && attempt <= UINT32_MAX, "attempt = ", attempt, ": expected 0 to 2^32 - 1");
        require_size(out, "out", slots.size());
        NegativeDraws draws{batch_key, static_cast<uint32_t>(side), num_nodes, nullptr};
        if (weight_sum) {
          require_size(*weight_sum, "weight_sum", num_nodes);
          draws.weight_sum = read<uint64_t>(*weight_sum, "weight_sum");
        }
        const int64_t* slot = read<int64_t>(slots, "slots");
        const int64_t n = slots.size();
        int64_t* node = write<int64_t>(out, "out");
        WithoutGil nogil;
        draws.fill(slot, n, static_cast<uint32_t>(attempt), node);
      },
      "Candidates for negatives: out[i] is a function of (batch_key, side, slots[i], attempt), uniform in "
      "[0, num_nodes) or, with weight_sum (inclusive, of all nodes), proportional to weight.",
      py::arg("batch_key"), py::arg("side"), py::arg("slots"), py::arg("attempt"), py::arg("num_nodes"),
      py::arg("weight_sum"), py::arg("out"));
}

}  // namespace glt::python
