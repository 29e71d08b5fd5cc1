#include "core/slot_cache.h"

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "core/row_claims.h"
#include "python/arrays.h"
#include "python/gil.h"

namespace glt::python {
namespace {

// Slots that stay as they are while Python holds this.
class PinnedSlots {
 public:
  PinnedSlots(std::shared_ptr<SlotCache> cache, std::vector<int64_t> slots, bool is_coming)
      : cache_(std::move(cache)), slots_(std::move(slots)), is_coming_(is_coming) {}
  PinnedSlots(const PinnedSlots&) = delete;
  PinnedSlots& operator=(const PinnedSlots&) = delete;
  ~PinnedSlots() { release(false); }

  void release(bool are_written) {
    const std::vector<int64_t> slots = std::exchange(slots_, {});
    if (is_coming_)
      cache_->settle(slots, are_written);
    else
      cache_->unpin(slots);
  }

 private:
  std::shared_ptr<SlotCache> cache_;
  std::vector<int64_t> slots_;
  const bool is_coming_;
};

py::tuple look_up(const std::shared_ptr<SlotCache>& self, const py::array& ids, const py::array& positions) {
  const int64_t n = ids.size();
  const int64_t* id = read<int64_t>(ids, "ids");
  require_size(positions, "positions", n);
  const uint32_t* position = read<uint32_t>(positions, "positions");
  py::array_t<int64_t> slots(n), rest(n);
  py::array_t<uint32_t> slot_positions(n), rest_positions(n);
  int64_t *s = slots.mutable_data(), *r = rest.mutable_data(), found;
  uint32_t *sp = slot_positions.mutable_data(), *rp = rest_positions.mutable_data();
  std::shared_ptr<PinnedSlots> pins;
  {
    WithoutGil nogil;
    found = self->look_up(id, position, n, s, sp, r, rp);
    pins = std::make_shared<PinnedSlots>(self, std::vector<int64_t>(s, s + found), false);
  }
  const py::slice yes(0, found, 1), no(0, n - found, 1);
  return py::make_tuple(pins, slots[yes], slot_positions[yes], rest[no], rest_positions[no]);
}

py::tuple admit(const std::shared_ptr<SlotCache>& self, const py::array& ids) {
  const int64_t n = ids.size();
  const int64_t* id = read<int64_t>(ids, "ids");
  py::array_t<int64_t> index(n);
  py::array_t<uint32_t> slots(n);
  int64_t *x = index.mutable_data(), admitted;
  uint32_t* s = slots.mutable_data();
  std::shared_ptr<PinnedSlots> pins;
  {
    WithoutGil nogil;
    admitted = self->admit(id, n, x, s);
    pins = std::make_shared<PinnedSlots>(self, std::vector<int64_t>(s, s + admitted), true);
  }
  const py::slice some(0, admitted, 1);
  return py::make_tuple(pins, index[some], slots[some]);
}

py::tuple claim(RowClaims& self, const py::array& ids, const py::array& positions, uint32_t request) {
  const int64_t n = ids.size();
  const int64_t* id = read<int64_t>(ids, "ids");
  require_size(positions, "positions", n);
  const uint32_t* position = read<uint32_t>(positions, "positions");
  py::array_t<int64_t> fresh(n), rows(n);
  py::array_t<uint32_t> fresh_positions(n), row_positions(n);
  int64_t *f = fresh.mutable_data(), *r = rows.mutable_data(), num_fresh;
  uint32_t *fp = fresh_positions.mutable_data(), *rp = row_positions.mutable_data();
  std::vector<RowClaims::Group> groups;
  {
    WithoutGil nogil;
    num_fresh = self.claim(id, position, n, request, f, fp, r, rp, groups);
  }
  py::list others;
  int64_t first = 0;
  for (const RowClaims::Group& group : groups) {
    const py::slice some(first, group.end, 1);
    others.append(py::make_tuple(group.request, rows[some], row_positions[some]));
    first = group.end;
  }
  const py::slice some(0, num_fresh, 1);
  return py::make_tuple(fresh[some], fresh_positions[some], others);
}

}  // namespace

void register_slot_cache(py::module_& m) {
  py::class_<PinnedSlots, std::shared_ptr<PinnedSlots>>(m, "PinnedSlots", "Slots that stay while this lives.")
      .def("written", [](PinnedSlots& self) { self.release(true); }, "The rows are there: others may find them.");
  py::class_<SlotCache, std::shared_ptr<SlotCache>>(m, "SlotCache",
                                                    "Which ids have a slot; see csrc/core/slot_cache.h.")
      .def(py::init<int64_t>(), py::arg("num_slots"))
      .def_property_readonly("num_slots", &SlotCache::num_slots)
      .def_property_readonly("num_used", &SlotCache::num_used)
      .def("look_up", &look_up,
           "Returns (PinnedSlots, slots, their positions, ids without one, their positions); positions are uint32.",
           py::arg("ids"), py::arg("positions"))
      .def(
          "admit", &admit,
          "Returns (PinnedSlots, which of the ids got a slot, those slots as uint32); they are found once written() is "
          "called.",
          py::arg("ids"));
  py::class_<RowClaims>(m, "RowClaims", "Which request brings the row of an id; see csrc/core/row_claims.h.")
      .def(py::init<>())
      .def_property_readonly("num_ids", &RowClaims::num_ids)
      .def("claim", &claim,
           "Returns (ids that are new, which `request` now has, their positions, [(request that has others, their rows "
           "in its answer, their positions)]); positions are uint32.",
           py::arg("ids"), py::arg("positions"), py::arg("request"));
}

}  // namespace glt::python
