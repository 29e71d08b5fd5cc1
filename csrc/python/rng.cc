#include "core/rng.h"

#include "core/numbers.h"
#include "python/arrays.h"
#include "python/gil.h"

namespace glt::python {

void register_rng(py::module_& m) {
  m.def(
      "batch_key",
      [](uint64_t rng_seed, uint32_t epoch, uint64_t batch) {
        return derive_key(rng_seed, Purpose::kBatchKey, epoch, batch);
      },
      py::arg("rng_seed"), py::arg("epoch"), py::arg("batch"));
  m.def(
      "shared_key",
      [](uint64_t rng_seed, uint32_t epoch, uint64_t window) {
        return derive_key(rng_seed, Purpose::kSharedKey, epoch, window);
      },
      py::arg("rng_seed"), py::arg("epoch"), py::arg("window"));
  m.def("number_key", &number_key, py::arg("shared_key"), py::arg("hop"), py::arg("node_type"));
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
}

}  // namespace glt::python
