#include <algorithm>
#include <memory>
#include <vector>

#include "python/device.h"
#include "python/without_gil.h"

namespace glt::python {
namespace {

constexpr int64_t kMostBlocks = 1 << 16;  // which go on to further rows

class DeviceHotness {
 public:
  explicit DeviceHotness(std::unique_ptr<cuda::Launcher> launcher) : launcher_(std::move(launcher)) {}

  void add_doubt(const cuda::HotnessTask& task, void* stream) {
    const int64_t blocks = std::min(task.rows.num_nodes, kMostBlocks);
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

void register_device_hotness(py::module_& m) {
  m.attr("most_hotness_hops") = cuda::kMostHotnessHops;
  py::class_<DeviceHotness>(m, "DeviceHotness")
      .def(py::init([](int device, const std::string& order, uint64_t shuffle_seed, int num_threads) {
             return std::make_unique<DeviceHotness>(launcher_of(device, order, shuffle_seed, num_threads, false));
           }),
           "device -1 runs the kernel's body on the host, threads and blocks in `order`.", py::kw_only(),
           py::arg("device"), py::arg("order") = "forward", py::arg("shuffle_seed") = 0, py::arg("num_threads") = 1)
      .def(
          "add_doubt",
          [](DeviceHotness& self, const cuda::DeviceRows& rows, const std::vector<int64_t>& num_neighbors,
             bool weighted, bool replace, int64_t hop, uintptr_t expanded, uintptr_t neighbor, int64_t num_columns,
             uintptr_t doubt, uintptr_t repeated, uintptr_t mutual, const cuda::DeviceRows* back,
             const std::vector<int64_t>& back_neighbors, uintptr_t stream) {
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
          },
          "Launches what one edge type contributes at one hop: add_doubt, in memory that kernels read.",
          py::arg("rows"), py::arg("num_neighbors"), py::kw_only(), py::arg("weighted"), py::arg("replace"),
          py::arg("hop"), py::arg("expanded"), py::arg("neighbor"), py::arg("num_columns"), py::arg("doubt"),
          py::arg("repeated") = 0, py::arg("mutual") = 0, py::arg("back") = nullptr,
          py::arg("back_neighbors") = std::vector<int64_t>{}, py::arg("stream") = 0);
}

}  // namespace glt::python
