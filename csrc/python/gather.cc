#include "core/gather.h"

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/block_pool.h"
#include "core/huge_pages.h"
#include "cuda/gather.h"
#include "python/arrays.h"
#include "python/gil.h"

#if GLT_HAS_CUDA
#include "cuda/device.h"
#endif

namespace glt::python {

namespace {

// Tables in several tiers of memory come as addresses: they may be of another device, so no NumPy array can stand for
// them.
using cuda::GatherCall;
using cuda::TieredTable;

// How rows are packed, by name, and how many elements they have.
using FormatSpec = std::optional<std::pair<std::string, int64_t>>;

Packing packing_of(const std::string& name) {
  if (name == "bfloat16") return Packing::kBfloat16;
  if (name == "float16") return Packing::kHalf;
  if (name == "int8") return Packing::kInt8;
  if (name == "int4") return Packing::kInt4;
  throw std::invalid_argument(text("packing '", name, "': expected 'bfloat16', 'float16', 'int8' or 'int4'"));
}

RowFormat format_of(const FormatSpec& spec, int64_t row_bytes) {
  if (!spec) return {};
  const auto& [name, num_columns] = *spec;
  const RowFormat format{packing_of(name), num_columns};
  require(num_columns >= 0 && num_columns < (int64_t{1} << 29), "num_columns = ", num_columns, ": expected 0 to 2^29");
  require(row_bytes == packed_bytes(format.packing, num_columns), "rows of ", row_bytes, " bytes: expected ",
          packed_bytes(format.packing, num_columns), ", those of ", num_columns, " elements packed as ", name);
  return format;
}

// Raises unless rows of `out` hold what becomes of rows of `row_bytes`.
void require_rows(const py::array& out, const char* name, int64_t row_bytes, const RowFormat& format) {
  const int64_t expected = format.out_bytes(row_bytes);
  require(row_bytes_of(out, name) == expected, name, " has rows of ", row_bytes_of(out, name), " bytes: expected ",
          expected, ", as the table's rows have: the same dtype and width");
  require(out.writeable(), name, ": expected a writeable array");
}

// Address, number of rows, bytes from row to row.
using Segment = std::tuple<uint64_t, int64_t, int64_t>;

TieredTable table_of(int64_t row_bytes, const std::vector<Segment>& tiers,
                     std::optional<std::pair<uint64_t, int64_t>> row_of, int64_t first_id, const FormatSpec& packing) {
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
  const RowFormat format = format_of(packing, row_bytes);
  t.packing = format.packing;
  t.num_columns = format.num_columns;
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

#if GLT_HAS_CUDA
namespace {

void register_cuda(py::module_& m) {
  m.def(
      "cuda_gather",
      [](const cuda::TieredTable& table, const cuda::GatherCall& call, int device, uint64_t stream, int max_blocks) {
        WithoutGil nogil;
        cuda::gather_rows(table, call, max_blocks, device, reinterpret_cast<void*>(stream));
      },
      "Launches the gather on a device; see csrc/cuda/gather.h.", py::arg("table"), py::arg("call"), py::arg("device"),
      py::arg("stream"), py::arg("max_blocks") = 0);
  m.def("cuda_register_host", &cuda::register_host, "Pins whole pages; see csrc/cuda/device.h.", py::arg("address"),
        py::arg("num_bytes"), py::arg("read_only"), py::arg("device"), py::call_guard<WithoutGil>());
  m.def("cuda_reads_host_memory", &cuda::reads_host_memory, "Whether none needs to be pinned; see csrc/cuda/device.h.",
        py::arg("device"), py::call_guard<WithoutGil>());
  m.def("cuda_unregister_host", &cuda::unregister_host, "Undoes cuda_register_host.", py::arg("address"),
        py::arg("device"), py::call_guard<WithoutGil>());
}

}  // namespace
#endif

void register_gather(py::module_& m) {
  m.def(
      "collapse_to_huge_pages",
      [](const py::array& array, double seconds) {
        void* data = const_cast<void*>(array.data());  // its bytes stay what they are
        const int64_t bytes = array.nbytes();
        WithoutGil nogil;
        return collapse_to_huge_pages(data, bytes, seconds);
      },
      "Moves memory that has been written to 2 MiB pages, for so long at most; returns how many bytes have them.",
      py::arg("array"), py::arg("seconds"));
  m.def(
      "gather_rows",
      [](const py::array& table, std::optional<py::array> ids, py::array out, std::optional<py::array> row_of,
         std::optional<py::array> positions, int num_threads, int64_t first_id, const FormatSpec& packing) {
        GatherSpec spec{};
        spec.row_bytes = row_bytes_of(table, "table");
        spec.format = format_of(packing, spec.row_bytes);
        require_rows(out, "out", spec.row_bytes, spec.format);
        require(num_threads >= 1, "num_threads = ", num_threads, ": expected at least 1");
        spec.table = static_cast<const std::byte*>(table.data());
        spec.num_rows = table.shape(0);
        spec.n = ids ? ids->size() : spec.num_rows;
        if (ids) spec.ids = read<int64_t>(*ids, "ids");
        require(!row_of || first_id == 0, "first_id = ", first_id,
                ": expected none beside row_of, which maps ids to rows");
        spec.first_id = first_id;
        if (row_of) {
          spec.row_of = read<uint32_t>(*row_of, "row_of");
          spec.num_ids = row_of->size();
        }
        if (positions) {
          require_size(*positions, "positions", spec.n);
          spec.positions = read<uint32_t>(*positions, "positions");
        }
        spec.out = static_cast<std::byte*>(out.mutable_data());
        spec.num_out = out.shape(0);
        WithoutGil nogil;
        gather_rows(spec, num_threads);
      },
      "out[positions[i]] = table[row_of[ids[i]]], or table[ids[i] - first_id]; without ids: the rows of table in "
      "order. Rows that are packed, (name, elements of a row), become float32.",
      py::arg("table"), py::arg("ids"), py::arg("out"), py::arg("row_of") = py::none(),
      py::arg("positions") = py::none(), py::arg("num_threads") = 1, py::arg("first_id") = 0,
      py::arg("packing") = py::none());

  m.def(
      "gather_from",
      [](const std::vector<py::tuple>& sources, py::array out, const FormatSpec& packing) {
        const int64_t num_out = out.shape(0);
        const int64_t row_bytes =
            packing ? packed_bytes(packing_of(packing->first), packing->second) : row_bytes_of(out, "out");
        const RowFormat format = format_of(packing, row_bytes);
        require_rows(out, "out", row_bytes, format);
        std::vector<RowSource> from;
        std::vector<py::array> kept;  // for as long as they are read
        for (const py::tuple& source : sources) {
          require(source.size() == 5, "a source of ", source.size(),
                  " elements: expected (table, ids, positions, row_of, first_id)");
          const auto array = [&](int at) { return kept.emplace_back(source[at].cast<py::array>()); };
          const py::array table = array(0);
          require(row_bytes_of(table, "table") == row_bytes, "table has rows of ", row_bytes_of(table, "table"),
                  " bytes: expected ", row_bytes, ", as the others and out have");
          RowSource& s = from.emplace_back();
          s.table = static_cast<const std::byte*>(table.data());
          s.n = s.num_rows = table.shape(0);
          if (!source[1].is_none()) {
            const py::array ids = array(1);
            s.n = ids.size();
            s.ids = read<int64_t>(ids, "ids");
          }
          if (!source[2].is_none()) {
            const py::array positions = array(2);
            require_size(positions, "positions", s.n);
            s.positions = read<uint32_t>(positions, "positions");
          }
          if (!source[3].is_none()) {
            const py::array row_of = array(3);
            s.row_of = read<uint32_t>(row_of, "row_of");
            s.num_ids = row_of.size();
          }
          s.first_id = source[4].cast<int64_t>();
        }
        std::byte* to = static_cast<std::byte*>(out.mutable_data());
        WithoutGil nogil;
        gather_from(from, row_bytes, to, num_out, format);
      },
      "out[positions[i]] = table[row_of[ids[i]]] of sources (table, ids, positions, row_of, first_id), all but the "
      "first and the last of which may be None, that fill out together. Rows that are packed become float32.",
      py::arg("sources"), py::arg("out"), py::arg("packing") = py::none());

  m.def(
      "number_rows",
      [](const py::array& ids, int64_t num_rows, const std::optional<py::array>& row_of, int64_t first_id) {
        static const std::byte here{};  // what rows are counted from
        RowSource from{&here, num_rows, read<int64_t>(ids, "ids"), ids.size()};
        if (row_of) {
          from.row_of = read<uint32_t>(*row_of, "row_of");
          from.num_ids = row_of->size();
        }
        from.first_id = first_id;
        py::array_t<int64_t> rows(from.n);
        int64_t* row = rows.mutable_data();
        WithoutGil nogil;
        number_rows(from, row);
        return rows;
      },
      "row_of[ids[i]], or ids[i] - first_id, of a table of num_rows rows.", py::arg("ids"), py::arg("num_rows"),
      py::arg("row_of") = py::none(), py::arg("first_id") = 0);

  m.def(
      "pack_rows",
      [](const py::array& rows, py::array out, const std::string& name, int num_threads) {
        const Packing packing = packing_of(name);
        const float* from = read<float>(rows, "rows");
        const int64_t n = out.shape(0), num_columns = n == 0 ? 0 : rows.size() / n;
        require_size(rows, "rows", n * num_columns);
        require(n == 0 || row_bytes_of(out, "out") == packed_bytes(packing, num_columns), "out: expected rows of ",
                packed_bytes(packing, num_columns), " bytes");
        require(out.writeable(), "out: expected a writeable array");
        require(num_threads >= 1, "num_threads = ", num_threads, ": expected at least 1");
        auto* to = static_cast<std::byte*>(out.mutable_data());
        PackingSums sums;
        int64_t bad;
        {
          WithoutGil nogil;
          bad = pack_rows(from, n, num_columns, packing, to, sums, num_threads);
        }
        return py::make_tuple(bad, sums.square_error, sums.square, sums.largest);
      },
      "Packs float32 rows [n * columns] into out [n, bytes]; returns the position of the first number that cannot be "
      "stored or -1, the sums of squares of the differences and of the numbers, and the largest difference.",
      py::arg("rows"), py::arg("out"), py::arg("packing"), py::arg("num_threads") = 1);

  py::class_<RowIndex>(m, "RowIndex", "Which ids have a row in a small table; see csrc/core/gather.h.")
      .def(py::init([](const py::array& ids, int64_t num_ids) {
             require(num_ids >= 0, "num_ids = ", num_ids, ": expected at least 0");
             const int64_t* p = read<int64_t>(ids, "ids");
             const int64_t n = ids.size();
             WithoutGil nogil;
             return RowIndex(p, n, num_ids);
           }),
           py::arg("ids"), py::arg("num_ids"))
      .def_property_readonly("num_rows", &RowIndex::num_rows)
      .def_property_readonly("num_ids", &RowIndex::num_ids)
      .def(
          "split",
          [](const RowIndex& self, const py::array& ids, const py::array& positions) {
            const int64_t n = ids.size();
            const int64_t* id = read<int64_t>(ids, "ids");
            require_size(positions, "positions", n);
            const uint32_t* position = read<uint32_t>(positions, "positions");
            py::array_t<int64_t> rows(n), rest(n);
            py::array_t<uint32_t> row_positions(n), rest_positions(n);
            int64_t *r = rows.mutable_data(), *s = rest.mutable_data(), found;
            uint32_t *rp = row_positions.mutable_data(), *sp = rest_positions.mutable_data();
            {
              WithoutGil nogil;
              found = self.split(id, position, n, r, rp, s, sp);
            }
            const py::slice yes(0, found, 1), no(0, n - found, 1);
            return py::make_tuple(rows[yes], row_positions[yes], rest[no], rest_positions[no]);
          },
          "Returns (rows, their positions, ids without a row, their positions).", py::arg("ids"), py::arg("positions"));

  py::class_<TieredTable>(m, "TieredTable")
      .def(py::init(&table_of), py::arg("row_bytes"), py::arg("tiers"), py::kw_only(), py::arg("row_of") = py::none(),
           py::arg("first_id") = 0, py::arg("packing") = py::none())
      .def_readonly("num_rows", &TieredTable::num_rows);
  py::class_<GatherCall>(m, "GatherCall")
      .def(py::init(&call_of), py::arg("ids"), py::arg("id_bytes"), py::arg("n"), py::arg("out"), py::arg("num_out"),
           py::arg("error"), py::arg("positions") = 0, py::arg("count") = 0);
  m.def(
      "host_gather",
      [](const TieredTable& table, const GatherCall& call, int num_threads) {
        require(num_threads >= 1 && num_threads % cuda::kMaxLanes == 0, "num_threads = ", num_threads,
                ": expected a multiple of ", cuda::kMaxLanes);
        const cuda::RowPieces pieces = cuda::pieces_of(table, call);
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
#if GLT_HAS_CUDA
  register_cuda(m);
#endif
}

}  // namespace glt::python
