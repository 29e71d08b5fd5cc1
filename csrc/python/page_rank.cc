#include "core/page_rank.h"

#include <utility>
#include <vector>

#include "python/arrays.h"
#include "python/csr.h"
#include "python/gil.h"

namespace glt::python {

void register_page_rank(py::module_& m) {
  m.def(
      "page_ranks",
      [](const std::vector<CsrArg>& csrs, const std::vector<std::pair<uint32_t, uint32_t>>& ends, uint32_t num_types,
         uint32_t seed_type, uint32_t wanted_type, const py::array& seeds, py::array count, py::array neighbor,
         py::array score, int64_t num_neighbors, double stop, double residual_per_edge, int num_threads) {
        const PageRankSpec spec{stop, residual_per_edge, num_neighbors};
        check_page_rank(spec);
        const int64_t n = seeds.size();
        require_size(count, "count", n);
        require_size(neighbor, "neighbor", n * num_neighbors);
        require_size(score, "score", n * num_neighbors);
        const std::vector<PartedCsr> graphs = graphs_of(csrs);
        const int64_t* seed = read<int64_t>(seeds, "seeds");
        auto* counts = write<uint32_t>(count, "count");
        auto* neighbors = write<int64_t>(neighbor, "neighbor");
        auto* scores = write<double>(score, "score");
        checked_threads(num_threads);
        WithoutGil nogil;
        page_ranks(graphs, ends, num_types, spec, seed_type, wanted_type, seed, n, num_threads, counts, neighbors,
                   scores);
      },
      "The nodes of highest personalised PageRank around seeds; see csrc/core/page_rank.h.", py::arg("csrs"),
      py::arg("ends"), py::arg("num_types"), py::arg("seed_type"), py::arg("wanted_type"), py::arg("seeds"),
      py::arg("count"), py::arg("neighbor"), py::arg("score"), py::kw_only(), py::arg("num_neighbors"), py::arg("stop"),
      py::arg("residual_per_edge"), py::arg("num_threads") = 1);
}

}  // namespace glt::python
