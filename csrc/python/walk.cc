#include "core/walk.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/page_rank.h"
#include "core/page_rank_steps.h"
#include "python/arrays.h"
#include "python/csr.h"
#include "python/gil.h"

namespace glt::python {
namespace {

template <typename T>
std::vector<T> copied(const py::array& array, const char* name) {
  const T* first = read<T>(array, name);
  return {first, first + array.size()};
}

// Walks whose steps the caller answers, from wherever the rows are.
class SteppedWalks {
 public:
  SteppedWalks(const py::array& seeds, py::array out, WalkSpec spec, const std::optional<py::array>& seed_time)
      : spec_(std::move(spec)), out_(std::move(out)), seed_(copied<int64_t>(seeds, "seeds")) {
    check_walks(spec_, INT64_MAX);
    const auto n = static_cast<int64_t>(seed_.size());
    require(n <= UINT32_MAX, "seeds has ", n, " walks: expected fewer than 2^32");
    require_size(out_, "out", n * (spec_.length + 1));
    if (seed_time) {
      require_size(*seed_time, "seed_time", n);
      time_ = copied<int64_t>(*seed_time, "seed_time");
    }
    walks_.begin(spec_, seed_.data(), seed_time ? time_.data() : nullptr, n, 0, write<int64_t>(out_, "out"));
  }

  bool is_done() const { return walks_.is_done(); }
  uint32_t edge_type() const { return walks_.edge_type(); }
  uint32_t hop() const { return walks_.hop(); }
  int64_t num_draws() const { return walks_.num_draws(); }

  py::tuple rows() const {
    const Rows rows = walks_.rows();
    py::object time = py::none();
    if (rows.seed_time) time = copied_array(rows.seed_time, rows.n);
    return py::make_tuple(copied_array(rows.node, rows.n), copied_array(rows.tree, rows.n), time);
  }

  void take(const py::array& count, const py::array& neighbor, const std::optional<py::array>& time) {
    require(!walks_.is_done() && walks_.num_checks() == 0, "take: the walks ask for no rows now");
    const int64_t n = walks_.rows().n;
    require_size(count, "count", n);
    const uint32_t* counts = read<uint32_t>(count, "count");
    int64_t total = 0;
    for (int64_t i = 0; i < n; ++i) total += counts[i];
    require_size(neighbor, "neighbor", total);
    if (time) require_size(*time, "time", total);
    walks_.take(counts, read<int64_t>(neighbor, "neighbor"), time ? read<int64_t>(*time, "time") : nullptr);
  }

  py::tuple checks() const {
    return py::make_tuple(copied_array(walks_.centers(), walks_.num_checks()),
                          copied_array(walks_.neighbors(), walks_.num_checks()));
  }

  void judge(const py::array& found) {
    require(walks_.num_checks() > 0, "judge: the walks ask for no edges now");
    require_size(found, "found", walks_.num_checks());
    walks_.judge(read<uint8_t>(found, "found"));
  }

 private:
  WalkSpec spec_;
  py::array out_;
  std::vector<int64_t> seed_, time_;
  Walks walks_;
};

// Page ranks whose steps the caller answers. Keeps the arrays that it writes to.
class SteppedPageRanks {
 public:
  SteppedPageRanks(const std::vector<std::pair<uint32_t, uint32_t>>& ends, uint32_t num_types, uint32_t seed_type,
                   uint32_t wanted_type, const py::array& seeds, py::array count, py::array neighbor, py::array score,
                   const PageRankSpec& spec)
      : count_(std::move(count)), neighbor_(std::move(neighbor)), score_(std::move(score)) {
    check_page_rank(spec);
    const int64_t n = seeds.size();
    require_size(count_, "count", n);
    require_size(neighbor_, "neighbor", n * spec.num_neighbors);
    require_size(score_, "score", n * spec.num_neighbors);
    steps_ = std::make_unique<PageRankSteps>(ends, num_types, spec, seed_type, wanted_type,
                                             copied<int64_t>(seeds, "seeds"), write<uint32_t>(count_, "count"),
                                             write<int64_t>(neighbor_, "neighbor"), write<double>(score_, "score"));
  }

  bool is_done() const { return steps_->is_done(); }
  bool wants_rows() const { return steps_->wants_rows(); }

  py::array_t<int64_t> asked(uint32_t type) const {
    const std::vector<int64_t>& ids = steps_->asked(type);
    return copied_array(ids.data(), static_cast<int64_t>(ids.size()));
  }

  void take(uint32_t edge_type, const py::array& position, const py::array& count, const py::array& neighbor) {
    require_size(count, "count", position.size());
    steps_->take(edge_type, read<uint32_t>(position, "position"), read<uint32_t>(count, "count"), position.size(),
                 read_ids(neighbor, "neighbor"), neighbor.size());
  }

  void go_on() {
    require(!is_done(), "go_on: all seeds are done");
    const WithoutGil nogil;
    steps_->go_on();
  }

 private:
  py::array count_, neighbor_, score_;
  std::unique_ptr<PageRankSteps> steps_;
};

}  // namespace

void register_walk(py::module_& m) {
  py::class_<WalkSpec>(m, "WalkSpec", "What random walks are; see csrc/core/walk.h.")
      .def(py::init([](int64_t length, std::vector<uint32_t> path, uint64_t batch_key, double restart, double back,
                       double far, bool earlier) {
             return WalkSpec{batch_key, length, std::move(path), restart, back, far, earlier};
           }),
           py::arg("length"), py::kw_only(), py::arg("path"), py::arg("batch_key"), py::arg("restart") = 0.0,
           py::arg("back") = 1.0, py::arg("far") = 1.0, py::arg("earlier") = false);

  py::class_<SteppedWalks>(m, "Walks", "Random walks under way, which ask for rows and edges; see csrc/core/walk.h.")
      .def(py::init<const py::array&, py::array, WalkSpec, const std::optional<py::array>&>(), py::arg("seeds"),
           py::arg("out"), py::arg("spec"), py::arg("seed_time") = py::none())
      .def_property_readonly("is_done", &SteppedWalks::is_done)
      .def_property_readonly("edge_type", &SteppedWalks::edge_type)
      .def_property_readonly("hop", &SteppedWalks::hop)
      .def_property_readonly("num_draws", &SteppedWalks::num_draws)
      .def("rows", &SteppedWalks::rows, "Nodes, the numbers of their walks, and the latest times, or None.")
      .def("take", &SteppedWalks::take, py::arg("count"), py::arg("neighbor"), py::arg("time") = py::none())
      .def("checks", &SteppedWalks::checks, "Pairs of which it is asked whether they are edges: nodes and neighbours.")
      .def("judge", &SteppedWalks::judge, py::arg("found"));

  py::class_<SteppedPageRanks>(m, "PageRanks",
                               "Page ranks under way, which ask for degrees and rows; see csrc/core/page_rank_steps.h.")
      .def(py::init([](const std::vector<std::pair<uint32_t, uint32_t>>& ends, uint32_t num_types, uint32_t seed_type,
                       uint32_t wanted_type, const py::array& seeds, py::array count, py::array neighbor,
                       py::array score, int64_t num_neighbors, double stop, double residual_per_edge) {
             return std::make_unique<SteppedPageRanks>(ends, num_types, seed_type, wanted_type, seeds, std::move(count),
                                                       std::move(neighbor), std::move(score),
                                                       PageRankSpec{stop, residual_per_edge, num_neighbors});
           }),
           py::arg("ends"), py::arg("num_types"), py::arg("seed_type"), py::arg("wanted_type"), py::arg("seeds"),
           py::arg("count"), py::arg("neighbor"), py::arg("score"), py::kw_only(), py::arg("num_neighbors"),
           py::arg("stop"), py::arg("residual_per_edge"))
      .def_property_readonly("is_done", &SteppedPageRanks::is_done)
      .def_property_readonly("wants_rows", &SteppedPageRanks::wants_rows)
      .def("asked", &SteppedPageRanks::asked, py::arg("node_type"))
      .def("take", &SteppedPageRanks::take, py::arg("edge_type"), py::arg("position"), py::arg("count"),
           py::arg("neighbor"))
      .def("go_on", &SteppedPageRanks::go_on);

  m.attr("most_walk_steps") = kMostSteps;
  m.def(
      "walk",
      [](const std::vector<CsrArg>& csrs, const py::array& seeds, py::array out, const WalkSpec& spec,
         const std::optional<py::array>& seed_time, int num_threads) {
        check_walks(spec, static_cast<int64_t>(csrs.size()));
        require_size(out, "out", seeds.size() * (spec.length + 1));
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
      py::arg("csrs"), py::arg("seeds"), py::arg("out"), py::arg("spec"), py::arg("seed_time") = py::none(),
      py::arg("num_threads") = 1);

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
