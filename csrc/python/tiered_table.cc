// Tables in several tiers of memory, as addresses: they may be of another device, so no NumPy array can stand for them.
#include <string>
#include <tuple>
#include <vector>

#include "cuda/row_gather.h"
#include "python/arrays.h"
#include "python/without_gil.h"

namespace glt::python {
namespace {

using cuda::GatherCall;
using cuda::TieredTable;
using cuda::Widen;

template <typename T>
T* at(uint64_t address) {
  return reinterpret_cast<T*>(address);
}

Widen widen_of(const std::string& name) {
  if (name == "none") return Widen::kNone;
  if (name == "bfloat16") return Widen::kBfloat16;
  if (name == "float16") return Widen::kHalf;
  if (name == "int8") return Widen::kInt8;
  throw std::invalid_argument(text("widen = '", name, "': expected 'none', 'bfloat16', 'float16' or 'int8'"));
}

// Address, number of rows, bytes from row to row.
using Segment = std::tuple<uint64_t, int64_t, int64_t>;

TieredTable table_of(int64_t row_bytes, const std::vector<Segment>& tiers,
                     std::optional<std::pair<uint64_t, int64_t>> row_of, int64_t first_id, const std::string& widen,
                     uint64_t scale) {
  require(row_bytes >= 0 && row_bytes < (int64_t{1} << 31), "row_bytes = ", row_bytes, ": expected 0 to 2^31 - 1");
  require(!tiers.empty() && tiers.size() <= cuda::kMaxTiers, tiers.size(), " tiers: expected 1 to ", cuda::kMaxTiers);
  TieredTable t;
  t.row_bytes = row_bytes;
  for (const auto& [address, num_rows, stride] : tiers) {
    require(num_rows >= 0 && stride >= row_bytes, "a tier of ", num_rows, " rows, ", stride,
            " bytes apart: expected rows of ", row_bytes, " bytes");
    t.num_rows += num_rows;
    t.tier[t.num_tiers++] = {at<const std::byte>(address), t.num_rows, stride};
  }
  if (row_of) {
    t.row_of = at<const uint32_t>(row_of->first);
    t.num_ids = row_of->second;
  }
  t.first_id = first_id;
  t.widen = widen_of(widen);
  require(t.widen == Widen::kNone || row_bytes % cuda::stored_bytes(t.widen) == 0, "row_bytes = ", row_bytes,
          ": expected whole elements of ", widen);
  require(!scale || t.widen == Widen::kInt8, "scale: expected none but for int8 rows");
  t.scale = at<const float>(scale);
  return t;
}

GatherCall call_of(uint64_t ids, int id_bytes, int64_t n, uint64_t out, int64_t num_out, uint64_t error,
                   uint64_t positions, uint64_t count) {
  require(id_bytes == 4 || id_bytes == 8, "id_bytes = ", id_bytes, ": expected 4 (int32) or 8 (int64)");
  require(n >= 0 && (positions || n <= num_out), "out has ", num_out, " rows: expected at least ", n);
  require(error != 0, "error: expected the address of a 64-bit word");
  return {at<const void>(ids),           id_bytes == 8,      n,       at<const int32_t>(count),
          at<const uint32_t>(positions), at<std::byte>(out), num_out, at<uint64_t>(error)};
}

}  // namespace

void register_tiered_table(py::module_& m) {
  py::class_<TieredTable>(m, "TieredTable")
      .def(py::init(&table_of), py::arg("row_bytes"), py::arg("tiers"), py::kw_only(), py::arg("row_of") = py::none(),
           py::arg("first_id") = 0, py::arg("widen") = "none", py::arg("scale") = 0)
      .def_readonly("num_rows", &TieredTable::num_rows);
  py::class_<GatherCall>(m, "GatherCall")
      .def(py::init(&call_of), py::arg("ids"), py::arg("id_bytes"), py::arg("n"), py::arg("out"), py::arg("num_out"),
           py::arg("error"), py::arg("positions") = 0, py::arg("count") = 0);
  m.def(
      "host_gather",
      [](const TieredTable& table, const GatherCall& call, int num_threads) {
        require(num_threads >= 1 && num_threads % cuda::kMaxLanes == 0, "num_threads = ", num_threads,
                ": expected a multiple of ", cuda::kMaxLanes);
        const cuda::Pieces pieces = cuda::pieces_of(table, call);
        WithoutGil nogil;
        cuda::with_move(table, pieces, [&]<typename Move>() {
          for (int thread = 0; thread < num_threads; ++thread)
            cuda::gather_of_thread<Move>(table, call, pieces, thread, num_threads);
        });
        return std::tuple(pieces.width, pieces.num, 1 << pieces.lane_bits);
      },
      "Runs the gather kernel on the host, GPU thread by GPU thread; returns width and number of the pieces of a row "
      "and the lanes that move them.",
      py::arg("table"), py::arg("call"), py::arg("num_threads"));
}

}  // namespace glt::python
