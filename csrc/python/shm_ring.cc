#include "core/shm_ring.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>

#include "core/block_pool.h"
#include "python/arrays.h"
#include "python/gil.h"

namespace glt::python {
namespace {

using SharedMapping = std::shared_ptr<Mapping>;
using Reservation = RingProducer::Reservation;

Deadline deadline_after(double seconds) {
  require(seconds >= 0, "timeout_s = ", seconds, ": expected seconds, 0 or more");
  constexpr double kYear = 365.0 * 24 * 3600;  // far beyond any use, and still representable
  return std::chrono::steady_clock::now() +
         std::chrono::duration_cast<Deadline::duration>(std::chrono::duration<double>(std::min(seconds, kYear)));
}

// Waits without the GIL; runs the handlers of signals that arrive meanwhile, so Ctrl-C ends any wait.
template <typename Call>
RingStatus wait_without_gil(Call call) {
  for (;;) {
    RingStatus status;
    {
      WithoutGil nogil;
      status = call();
    }
    if (status != RingStatus::kInterrupted) return status;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  }
}

py::dict counters(const RingCounters& c) {
  py::dict d;
  d["messages"] = c.messages.load();
  d["bytes"] = c.bytes.load();
  d["waits"] = c.waits.load();
  d["wait_s"] = static_cast<double>(c.wait_ns.load()) * 1e-9;
  d["oversize"] = c.oversize.load();
  d["copied"] = c.copied.load();
  return d;
}

}  // namespace

void register_shm_ring(py::module_& m) {
  py::class_<BlockPool, std::shared_ptr<BlockPool>>(m, "BlockPool")
      .def(py::init([](int64_t limit_bytes) {
             require(limit_bytes >= 0, "limit_bytes = ", limit_bytes, ": expected 0 or more");
             return BlockPool::create(static_cast<size_t>(limit_bytes));
           }),
           py::arg("limit_bytes"))
      .def_static("of_process", &BlockPool::of_process, "The one of this process.")
      .def(
          "acquire",
          [](BlockPool& pool, int64_t nbytes) {
            require(nbytes >= 0, "nbytes = ", nbytes, ": expected 0 or more");
            BlockPool::Block block = pool.acquire(static_cast<size_t>(nbytes));
            uint8_t* data = block.data();
            return owned_bytes(data, static_cast<size_t>(nbytes), std::move(block));
          },
          "A page-aligned uint8 array [nbytes] of undefined content. Its memory returns to the pool when the last "
          "array, tensor or view of it is gone.",
          py::arg("nbytes"))
      .def("stats", [](const BlockPool& pool) {
        const BlockPool::Stats s = pool.stats();
        py::dict d;
        d["acquired"] = s.acquired;
        d["reused"] = s.reused;
        d["free_bytes"] = s.free_bytes;
        d["used_bytes"] = s.used_bytes;
        d["limit_bytes"] = s.limit_bytes;
        return d;
      });

  py::class_<Mapping, SharedMapping>(m, "Mapping")
      .def(py::init([](int fd, size_t nbytes) { return std::make_shared<Mapping>(Mapping::shared(fd, nbytes)); }),
           "The first nbytes bytes of an open file, shared. Needs no open file afterwards.", py::arg("fd"),
           py::arg("nbytes"))
      .def(
          "array", [](const SharedMapping& self) { return owned_bytes(self->data(), self->bytes(), self); },
          "A writeable uint8 array over all of it, which keeps it mapped.")
      .def_property_readonly("nbytes", [](const Mapping& self) { return self.bytes(); });

  py::enum_<RingStatus>(m, "RingStatus")
      .value("OK", RingStatus::kOk)
      .value("TIMEOUT", RingStatus::kTimeout)
      .value("CLOSED", RingStatus::kClosed);

  py::class_<Reservation, std::shared_ptr<Reservation>>(m, "RingReservation")
      .def_property_readonly(
          "array",
          [](const std::shared_ptr<Reservation>& self) { return owned_bytes(self->data(), self->nbytes(), self); },
          "The message's memory, uint8 [nbytes], 64-byte aligned. Not to be written after commit() or abandon().")
      .def("commit", &Reservation::commit, py::call_guard<WithoutGil>())
      .def("abandon", &Reservation::abandon, py::call_guard<WithoutGil>());

  py::class_<RingProducer, std::shared_ptr<RingProducer>>(m, "RingProducer")
      .def(py::init([](SharedMapping region, std::shared_ptr<BlockPool> pool) {
             return RingProducer::create(region->data(), region->bytes(), region, std::move(pool));
           }),
           py::arg("region"), py::arg("pool"))
      .def(
          "reserve",
          [](RingProducer& self, int64_t nbytes, double timeout_s) {
            require(nbytes >= 1, "message of ", nbytes, " bytes: expected at least 1");
            const Deadline deadline = deadline_after(timeout_s);
            std::shared_ptr<Reservation> slot;
            const RingStatus status =
                wait_without_gil([&] { return self.reserve(static_cast<uint64_t>(nbytes), deadline, slot); });
            return std::make_pair(status, slot);
          },
          "(RingStatus, RingReservation or None)", py::arg("nbytes"), py::arg("timeout_s"))
      .def(
          "close", [](RingProducer& self, double timeout_s) { self.close(deadline_after(timeout_s)); },
          py::arg("timeout_s"), py::call_guard<WithoutGil>());

  py::class_<RingConsumer, std::shared_ptr<RingConsumer>>(m, "RingConsumer")
      .def(py::init([](SharedMapping region, std::shared_ptr<BlockPool> pool) {
             return RingConsumer::create(region->data(), region->bytes(), region, std::move(pool));
           }),
           py::arg("region"), py::arg("pool"))
      .def(
          "receive",
          [](RingConsumer& self, double timeout_s) {
            const Deadline deadline = deadline_after(timeout_s);
            std::optional<RingConsumer::Message> message;
            const RingStatus status = wait_without_gil([&] { return self.receive(deadline, message); });
            py::object array = py::none();
            if (message) {
              uint8_t* data = message->data();
              const size_t nbytes = message->nbytes();
              array = owned_bytes(data, nbytes, std::move(*message));
            }
            return std::make_pair(status, array);
          },
          "(RingStatus, uint8 array or None); the memory is given back when the last view of the array is gone.",
          py::arg("timeout_s"))
      .def("close", &RingConsumer::close)
      .def_property_readonly("held_bytes", &RingConsumer::held_bytes);

  m.def("ring_bytes", &RingView::region_bytes, "Bytes of the region of a ring.", py::arg("arena_bytes"),
        py::arg("num_slots"));
  m.def(
      "format_ring",
      [](const SharedMapping& region, uint64_t arena_bytes, uint32_t num_slots) {
        RingView::format(region->data(), region->bytes(), arena_bytes, num_slots);
      },
      "Writes the header of an empty ring.", py::arg("region"), py::arg("arena_bytes"), py::arg("num_slots"));
  m.def(
      "close_ring", [](const SharedMapping& region) { RingView(region->data(), region->bytes()).close(); },
      "Closes both sides, from a process that is neither.", py::arg("region"));
  m.def(
      "ring_stats",
      [](const SharedMapping& region) {
        const RingView view(region->data(), region->bytes());
        const RingHeader& h = view.header();
        py::dict d;
        d["sent"] = counters(h.sent);
        d["received"] = counters(h.received);
        d["arena_bytes"] = view.arena_bytes();
        d["producer_pid"] = h.producer_pid.load();
        d["consumer_pid"] = h.consumer_pid.load();
        d["producer_closed"] = h.producer_closed.load() != 0;
        d["consumer_closed"] = h.consumer_closed.load() != 0;
        return d;
      },
      py::arg("region"));
}

}  // namespace glt::python
