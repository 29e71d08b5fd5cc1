#include "core/walk.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "python/arrays.h"
#include "python/csr.h"
#include "python/gil.h"

namespace glt::python {

void register_walk(py::module_& m) {
  m.attr("most_walk_steps") = kMostSteps;
  m.def(
      "walk",
      [](const std::vector<CsrArg>& csrs, const py::array& seeds, py::array out, int64_t length,
         std::vector<uint32_t> path, uint64_t batch_key, const std::optional<py::array>& seed_time, double restart,
         double back, double far, bool earlier, int num_threads) {
        const WalkSpec spec{batch_key, length, std::move(path), restart, back, far, earlier};
        check_walks(spec, static_cast<int64_t>(csrs.size()));
        require_size(out, "out", seeds.size() * (length + 1));
        const std::vector<PartedCsr> graphs = graphs_of(csrs);
        const int64_t* seed = read<int64_t>(seeds, "seeds");
        const int64_t n = seeds.size();
        if (seed_time) require_size(*seed_time, "seed_time", n);
        const int64_t* time = seed_time ? read<int64_t>(*seed_time, "seed_time") : nullptr;
        int64_t* walks = write<int64_t>(out, "out");
        checked_threads(num_threads);
        WithoutGil nogil;
        walk_here(graphs, spec, seed, time, n, num_threads, walks);
      },
      "Random walks from `seeds`, written to out [walks, length + 1], -1 behind a walk's end; see csrc/core/walk.h.",
      py::arg("csrs"), py::arg("seeds"), py::arg("out"), py::arg("length"), py::kw_only(), py::arg("path"),
      py::arg("batch_key"), py::arg("seed_time") = py::none(), py::arg("restart") = 0.0, py::arg("back") = 1.0,
      py::arg("far") = 1.0, py::arg("earlier") = false, py::arg("num_threads") = 1);
}

}  // namespace glt::python
