#include "core/hotness.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cuda/device_rows.h"
#include "cuda/hotness_kernels.h"
#include "cuda/launcher.h"
#include "python/csr.h"
#include "python/device.h"
#include "python/gil.h"

namespace glt::python {
namespace {

int64_t num_words(int64_t num_edges) {
  return (num_edges + 63) / 64;
}

void require_whole(const CsrView& csr, const char* name) {
  require(!csr.row_of && csr.num_rows == csr.num_nodes, name, " has ", csr.num_rows, " rows of ", csr.num_nodes,
          " nodes: hotness needs the rows of all nodes, not a partition's");
}

// found(v, i) of all nodes: [num_nodes, num_columns].
const float* read_found(const py::array& a, const char* name, int64_t num_nodes, int64_t num_columns) {
  require(a.ndim() == 2 && a.shape(0) == num_nodes && a.shape(1) == num_columns, name, ": expected [", num_nodes, ", ",
          num_columns, "]");
  if (!py::isinstance<py::array_t<float>>(a)) throw py::type_error(text(name, ": expected float32"));
  require_aligned(a, name);
  return static_cast<const float*>(a.data());
}

constexpr int64_t kMostBlocks = 1 << 16;  // which go on to further rows

class DeviceHotness {
 public:
  explicit DeviceHotness(std::unique_ptr<cuda::Launcher> launcher) : launcher_(std::move(launcher)) {}

  void add_doubt(const cuda::HotnessTask& task, void* stream) {
    const int64_t blocks = std::min(task.rows.num_nodes, kMostBlocks);
    const cuda::Launcher::Turn turn(*launcher_);
    launcher_->begin(stream);
    if (blocks > 0) launcher_->run(cuda::AddDoubt{task, blocks}, blocks, 1);
  }

 private:
  std::unique_ptr<cuda::Launcher> launcher_;
};

void copy_counts(const std::vector<int64_t>& counts, const char* name, int64_t hop, int64_t* out) {
  require(static_cast<int64_t>(counts.size()) > hop && counts.size() <= cuda::kMostHotnessHops, name, " has ",
          counts.size(), " hops: expected more than hop = ", hop, " and at most ", cuda::kMostHotnessHops);
  std::copy(counts.begin(), counts.end(), out);
}

}  // namespace

void register_hotness(py::module_& m) {
  m.attr("doubt_unit") = kDoubtUnit;
  m.def(
      "find_mutual",
      [](const Csr& csr, const Csr& back, py::array mutual, int num_threads) {
        const CsrView &along = csr.view(), &against = back.view();
        require_whole(along, "csr");
        require_whole(against, "back");
        require(along.num_nodes == against.num_neighbor_nodes && along.num_neighbor_nodes == against.num_nodes,
                "back: expected edges between the same nodes as csr's, the other way");
        require_size(mutual, "mutual", num_words(along.num_edges));
        uint64_t* bits = write<uint64_t>(mutual, "mutual");
        checked_threads(num_threads);
        WithoutGil nogil;
        find_mutual(along, against, bits, num_threads);
      },
      "Sets bit e of mutual [(num_edges + 63) // 64] uint64 where `back` has the reverse of edge e of csr.",
      py::arg("csr"), py::arg("back"), py::arg("mutual"), py::arg("num_threads") = 1);

  m.def(
      "find_repeated",
      [](const Csr& csr, py::array repeated, int num_threads) {
        const CsrView& view = csr.view();
        require_whole(view, "csr");
        require_size(repeated, "repeated", num_words(view.num_edges));
        uint64_t* bits = write<uint64_t>(repeated, "repeated");
        checked_threads(num_threads);
        WithoutGil nogil;
        find_repeated(view, bits, num_threads);
      },
      "Sets bit e of repeated [(num_edges + 63) // 64] uint64 where an edge before e has the same ends.",
      py::arg("csr"), py::arg("repeated"), py::arg("num_threads") = 1);

  m.def(
      "add_doubt",
      [](const Csr& csr, const std::vector<int64_t>& num_neighbors, bool weighted, bool replace, int64_t hop,
         const py::array& expanded, const py::array& neighbor, py::array doubt, std::optional<py::array> mutual,
         std::shared_ptr<Csr> back, const std::vector<int64_t>& back_neighbors, std::optional<py::array> repeated,
         int num_threads) {
        const CsrView& view = csr.view();
        require_whole(view, "csr");
        require(expanded.ndim() == 2, "expanded: expected two dimensions");
        HotnessHop at{};
        at.csr = &view;
        at.num_neighbors = num_neighbors.data();
        at.weighted = weighted;
        at.replace = replace;
        at.hop = hop;
        at.num_columns = expanded.shape(1);
        at.expanded = read_found(expanded, "expanded", view.num_nodes, at.num_columns);
        at.neighbor = read_found(neighbor, "neighbor", view.num_neighbor_nodes, at.num_columns);
        require(hop >= 0 && hop < static_cast<int64_t>(num_neighbors.size()), "hop = ", hop, ": expected 0 to ",
                static_cast<int64_t>(num_neighbors.size()) - 1);
        if (mutual) {
          require(back && back_neighbors.size() == num_neighbors.size(),
                  "mutual: expected back and back_neighbors, one per hop, with it");
          require_whole(back->view(), "back");
          require(view.num_neighbor_nodes == back->view().num_nodes, "back: expected rows of csr's neighbours");
          require_size(*mutual, "mutual", num_words(view.num_edges));
          at.mutual = read<uint64_t>(*mutual, "mutual");
          at.back = &back->view();
          at.back_neighbors = back_neighbors.data();
        }
        if (repeated) {
          require_size(*repeated, "repeated", num_words(view.num_edges));
          at.repeated = read<uint64_t>(*repeated, "repeated");
        }
        require_size(doubt, "doubt", view.num_neighbor_nodes);
        int64_t* sums = write<int64_t>(doubt, "doubt");
        checked_threads(num_threads);
        WithoutGil nogil;
        add_doubt(at, sums, num_threads);
      },
      "Adds what one edge type contributes at one hop; see csrc/core/hotness.h.", py::arg("csr"),
      py::arg("num_neighbors"), py::arg("weighted"), py::arg("replace"), py::arg("hop"), py::arg("expanded"),
      py::arg("neighbor"), py::arg("doubt"), py::arg("mutual") = py::none(), py::arg("back") = nullptr,
      py::arg("back_neighbors") = std::vector<int64_t>{}, py::arg("repeated") = py::none(), py::arg("num_threads") = 1);

  m.attr("most_hotness_hops") = cuda::kMostHotnessHops;
  constexpr OneUserMethods<DeviceHotness> method{"DeviceHotness"};
  py::class_<OneUser<DeviceHotness>>(m, "DeviceHotness")
      .def(py::init([](int device, const std::string& order, uint64_t shuffle_seed, int num_threads) {
             return std::make_unique<OneUser<DeviceHotness>>(
                 launcher_of(device, order, shuffle_seed, num_threads, false));
           }),
           "device -1 runs the kernel's body on the host, threads and blocks in `order`.", py::kw_only(),
           py::arg("device"), py::arg("order") = "forward", py::arg("shuffle_seed") = 0, py::arg("num_threads") = 1)
      .def("add_doubt",
           method(+[](DeviceHotness& self, const cuda::DeviceRows& rows, const std::vector<int64_t>& num_neighbors,
                      bool weighted, bool replace, int64_t hop, uintptr_t expanded, uintptr_t neighbor,
                      int64_t num_columns, uintptr_t doubt, uintptr_t repeated, uintptr_t mutual,
                      const cuda::DeviceRows* back, const std::vector<int64_t>& back_neighbors, uintptr_t stream) {
             require(hop >= 0 && hop < num_columns, "hop = ", hop, ": expected 0 to ", num_columns - 1);
             require(!mutual || back, "mutual: expected back with it");
             cuda::HotnessTask task{};
             task.rows = rows;
             copy_counts(num_neighbors, "num_neighbors", hop, task.num_neighbors);
             task.weighted = weighted;
             task.replace = replace;
             task.hop = hop;
             task.expanded = at<const float>(expanded);
             task.neighbor = at<const float>(neighbor);
             task.num_columns = num_columns;
             task.repeated = at<const uint64_t>(repeated);
             task.doubt = at<int64_t>(doubt);
             if (mutual) {
               task.mutual = at<const uint64_t>(mutual);
               task.back_indptr = back->indptr;
               copy_counts(back_neighbors, "back_neighbors", hop, task.back_neighbors);
             }
             WithoutGil nogil;
             self.add_doubt(task, at<void>(stream));
           }),
           "Launches what one edge type contributes at one hop: add_doubt, in memory that kernels read.",
           py::arg("rows"), py::arg("num_neighbors"), py::kw_only(), py::arg("weighted"), py::arg("replace"),
           py::arg("hop"), py::arg("expanded"), py::arg("neighbor"), py::arg("num_columns"), py::arg("doubt"),
           py::arg("repeated") = 0, py::arg("mutual") = 0, py::arg("back") = nullptr,
           py::arg("back_neighbors") = std::vector<int64_t>{}, py::arg("stream") = 0);
}

}  // namespace glt::python
