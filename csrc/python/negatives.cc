#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "core/pick_rules.h"
#include "cuda/device_rows.h"
#include "cuda/launcher.h"
#include "cuda/negative_kernels.h"
#include "python/device.h"
#include "python/gil.h"

namespace glt::python {
namespace {

// Launches a search for negatives; waiting is the caller's.
class DeviceNegatives {
 public:
  explicit DeviceNegatives(std::unique_ptr<cuda::Launcher> launcher) : launcher_(std::move(launcher)) {}

  void launch(const cuda::FindNegatives& find, int64_t num_slots, void* stream) {
    const cuda::Launcher::Turn turn(*launcher_);
    launcher_->begin(stream);
    launcher_->run(find, num_slots, 1);
  }

 private:
  std::unique_ptr<cuda::Launcher> launcher_;
};

}  // namespace

void register_negatives(py::module_& m) {
  m.attr("negative_redraw") = NegativeDraws::kRedraw;
  m.def(
      "negative_draws",
      [](uint64_t batch_key, int side, const py::array& slots, const py::array& attempts, int64_t num_nodes,
         const std::optional<py::array>& weight_sum, py::array out) {
        require(side == 0 || side == 1, "side = ", side, ": expected 0 (source) or 1 (destination)");
        require_size(attempts, "attempts", slots.size());
        require_size(out, "out", slots.size());
        NegativeDraws draws{batch_key, static_cast<uint32_t>(side), num_nodes, nullptr};
        if (weight_sum) {
          require_size(*weight_sum, "weight_sum", num_nodes);
          draws.weight_sum = read<uint64_t>(*weight_sum, "weight_sum");
        }
        const int64_t* slot = read<int64_t>(slots, "slots");
        const int64_t* attempt = read<int64_t>(attempts, "attempts");
        const int64_t n = slots.size();
        int64_t* node = write<int64_t>(out, "out");
        WithoutGil nogil;
        draws.fill(slot, attempt, n, node);
      },
      "Candidates for negatives: out[i] is a function of (batch_key, side, slots[i], attempts[i]), uniform in "
      "[0, num_nodes) or, with weight_sum (inclusive, of all nodes), proportional to weight.",
      py::arg("batch_key"), py::arg("side"), py::arg("slots"), py::arg("attempts"), py::arg("num_nodes"),
      py::arg("weight_sum"), py::arg("out"));

  py::class_<cuda::NegativeEnd>(m, "NegativeEnd", "One end of negatives, by the addresses of its arrays.")
      .def(py::init([](int64_t num_nodes, uintptr_t weight_sum, uintptr_t given, uintptr_t time, int64_t earliest,
                       int64_t earliest_time) {
             return cuda::NegativeEnd{{0, 0, num_nodes, at<const uint64_t>(weight_sum)},
                                      at<const int64_t>(given),
                                      at<const int64_t>(time),
                                      earliest,
                                      earliest_time};
           }),
           py::kw_only(), py::arg("num_nodes"), py::arg("weight_sum") = 0, py::arg("given") = 0, py::arg("time") = 0,
           py::arg("earliest") = 0, py::arg("earliest_time") = 0);

  constexpr OneUserMethods<DeviceNegatives> method{"DeviceNegatives"};
  py::class_<OneUser<DeviceNegatives>>(m, "DeviceNegatives")
      .def(py::init([](int device, const std::string& order, uint64_t shuffle_seed, int num_threads) {
             return std::make_unique<OneUser<DeviceNegatives>>(
                 launcher_of(device, order, shuffle_seed, num_threads, false));
           }),
           "device -1 runs the kernel's body on the host, threads and blocks in `order`.", py::kw_only(),
           py::arg("device"), py::arg("order") = "forward", py::arg("shuffle_seed") = 0, py::arg("num_threads") = 1)
      .def("launch",
           method(+[](DeviceNegatives& self, const cuda::DeviceRows* rows, bool from_destination, cuda::NegativeEnd src,
                      cuda::NegativeEnd dst, uint64_t batch_key, int64_t num_slots, uint32_t max_attempts,
                      uintptr_t seed_time, uintptr_t src_out, uintptr_t dst_out, uintptr_t gave_up, uintptr_t stream) {
             src.draws.batch_key = dst.draws.batch_key = batch_key;
             dst.draws.side = 1;
             const cuda::FindNegatives find{rows ? *rows : cuda::DeviceRows{},
                                            from_destination,
                                            {src, dst},
                                            at<const int64_t>(seed_time),
                                            max_attempts,
                                            {at<int64_t>(src_out), at<int64_t>(dst_out)},
                                            at<uint64_t>(gave_up)};
             WithoutGil nogil;
             self.launch(find, num_slots, at<void>(stream));
           }),
           "Writes the ends of each slot's negative, and to gave_up, 2^64 - 1 before, the lowest slot without one.",
           py::arg("rows"), py::kw_only(), py::arg("from_destination"), py::arg("src"), py::arg("dst"),
           py::arg("batch_key"), py::arg("num_slots"), py::arg("max_attempts"), py::arg("seed_time") = 0,
           py::arg("src_out"), py::arg("dst_out"), py::arg("gave_up"), py::arg("stream") = 0);
}

}  // namespace glt::python
