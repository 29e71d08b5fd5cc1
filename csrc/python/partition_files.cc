#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "core/block_file.h"
#include "core/csr.h"
#include "core/edge_sort.h"
#include "core/huge_pages.h"
#include "core/scatter.h"
#include "core/threads.h"
#include "python/gil.h"

namespace glt::python {
namespace {

// A file and where its rows begin, as Python passes it.
using PyRowFile = std::pair<std::shared_ptr<BlockFile>, int64_t>;
using PyGraphFiles = std::array<std::vector<PyRowFile>, PartGraphs::kNumArrays>;

RowFile row_file(const PyRowFile& given) {
  return {given.first.get(), given.second};
}

std::vector<RowFile> row_files(const std::vector<PyRowFile>& given) {
  std::vector<RowFile> files;
  for (const PyRowFile& each : given) files.push_back(row_file(each));
  return files;
}

OwnerArray full_book(const py::array& owner, int64_t num_parts, const char* name) {
  require(num_parts >= 1, "num_parts = ", num_parts, ": expected at least 1");
  require_contiguous(owner, name);
  return owner_array(owner, num_parts, name);
}

// A column of numbers of one of the kinds of `kinds`, as NumPy spells them; need not be contiguous.
Column read_column(const py::array& a, const char* name, const char* kinds, const char* meaning) {
  const char kind = a.dtype().kind();
  const int64_t width = a.itemsize();
  if (std::strchr(kinds, kind) == nullptr || a.ndim() != 1 || (width & (width - 1)) != 0 || width > 8)
    throw py::type_error(text(name, ": expected a 1-d array of ", meaning, ", got ", describe(a)));
  return {static_cast<const std::byte*>(a.data()), a.strides(0), static_cast<int>(width), kind == 'i'};
}

EdgeList edge_list(const py::array& rows, const py::array& cols, int64_t num_nodes, int64_t num_neighbors) {
  require_size(cols, "cols", rows.size());
  EdgeList edges{};
  edges.row = read_ids(rows, "rows");
  edges.col = read_ids(cols, "cols");
  edges.num_edges = edges.num_ids = rows.size();
  edges.num_nodes = num_nodes;
  edges.num_neighbors = num_neighbors;
  return edges;
}

const uint32_t* read_positions(const py::array& position, int64_t num_nodes) {
  require_size(position, "position", num_nodes);
  const uint32_t* p = read<uint32_t>(position, "position");
  require(std::all_of(p, p + num_nodes, [&](uint32_t at) { return at < num_nodes; }),
          "position: expected a permutation of [0, ", num_nodes, ")");
  return p;
}

SortPlan plan_of(const EdgeList& edges, int64_t indices_width, int64_t edge_ids_width, int64_t thread_bytes) {
  require(thread_bytes >= 1, "thread_bytes = ", thread_bytes, ": expected at least 1");
  require((indices_width == 4 || indices_width == 8) && (edge_ids_width == 4 || edge_ids_width == 8),
          "ids are of 4 or 8 bytes, got ", indices_width, " and ", edge_ids_width);
  return SortPlan(RecordLayout(edges), edges.num_edges, indices_width, edge_ids_width, thread_bytes);
}

void register_files(py::module_& m) {
  py::register_local_exception_translator([](std::exception_ptr p) {
    try {
      if (p) std::rethrow_exception(p);
    } catch (const std::system_error& error) {
      // "<path>: <message>" is what the standard library makes of the two.
      const std::string message = error.code().message(), what = error.what();
      const std::string path = what.substr(0, what.size() - std::min(what.size(), message.size() + 2));
      const auto name = py::reinterpret_steal<py::object>(PyUnicode_DecodeFSDefault(path.c_str()));
      const py::tuple arguments = py::make_tuple(error.code().value(), message, name);
      PyErr_SetObject(PyExc_OSError, arguments.ptr());
    }
  });
  m.def("read_into_huge_pages", &read_into_huge_pages,
        "Reads bytes of a file into 2 MiB pages that its processes share; see csrc/core/huge_pages.h.", py::arg("fd"),
        py::arg("begin"), py::arg("num_bytes"), py::call_guard<WithoutGil>());
  m.def(
      "crc32",
      [](const py::array& data, uint32_t crc) {
        require_contiguous(data, "data");
        const void* p = data.data();
        const size_t n = static_cast<size_t>(data.nbytes());
        WithoutGil nogil;
        return crc32(p, n, crc);
      },
      "CRC-32 of the bytes of an array, as zlib.crc32.", py::arg("data"), py::arg("crc") = 0);
  py::class_<BlockFile, std::shared_ptr<BlockFile>>(m, "BlockFile")
      .def(py::init<std::string, int64_t, int64_t>(), py::arg("path"), py::arg("num_bytes"), py::arg("block_bytes"))
      .def(
          "write",
          [](BlockFile& file, int64_t offset, const py::array& data) {
            require_contiguous(data, "data");
            const void* p = data.data();
            const int64_t n = data.nbytes();
            WithoutGil nogil;
            file.write(offset, p, n);
          },
          py::arg("offset"), py::arg("data"))
      .def("checksum", &BlockFile::checksum)
      .def_property_readonly("path", &BlockFile::path)
      .def_property_readonly("num_bytes", &BlockFile::num_bytes);
}

void register_scatter(py::module_& m) {
  m.def(
      "scatter_rows",
      [](const py::array& table, const py::array& book, std::optional<py::array> ids, int64_t first,
         std::vector<PyRowFile> files, py::array filled, std::optional<PyRowFile> owner_file,
         std::optional<PyRowFile> place_file, int64_t chunk_rows, int num_threads,
         std::optional<py::function> progress) {
        const int64_t num_parts = static_cast<int64_t>(files.size());
        require(table.ndim() >= 1, "table: expected at least one dimension");
        ScatterSpec spec{};
        spec.n = table.shape(0);
        spec.row_bytes = table.itemsize();
        for (int64_t d = table.ndim() - 1; d >= 1; --d) {
          require(table.shape(d) <= 1 || spec.n == 0 || table.strides(d) == spec.row_bytes,
                  "table: expected rows whose elements follow each other; make it contiguous");
          spec.row_bytes *= table.shape(d);
        }
        spec.table = static_cast<const std::byte*>(table.data());
        spec.row_stride = table.strides(0);
        spec.book = full_book(book, num_parts, "book");
        spec.first = first;
        if (ids) {
          require_size(*ids, "ids", spec.n);
          spec.ids = read_ids(*ids, "ids");
        } else {
          require(first >= 0 && first + spec.n <= spec.book.num_ids, "rows ", first, " to ", first + spec.n,
                  " are outside the book of ", spec.book.num_ids, " ids");
        }
        spec.chunk_rows = std::min(chunk_rows, std::max<int64_t>(spec.n, 1));
        spec.files = row_files(files);
        RowFile owners{}, places{};
        if (owner_file) owners = row_file(*owner_file), spec.owner_file = &owners;
        if (place_file) places = row_file(*place_file), spec.place_file = &places;
        require_size(filled, "filled", num_parts);
        int64_t* counts = write<int64_t>(filled, "filled");
        const int threads = checked_threads(num_threads);
        const Progress report = progress_of(progress);
        WithoutGil nogil;
        scatter_rows(spec, counts, threads, report);
      },
      "Appends each row of table [n, ...] to the file of its owner, book[ids[i]] (without ids: book[first + i]); "
      "filled [num_parts] int64 counts rows before and after. Files are (BlockFile, bytes before its first row).",
      py::arg("table"), py::arg("book"), py::arg("ids"), py::arg("first"), py::arg("files"), py::arg("filled"),
      py::arg("owner_file") = py::none(), py::arg("place_file") = py::none(), py::arg("chunk_rows") = 1 << 14,
      py::arg("num_threads") = 1, py::arg("progress") = py::none());
}

void register_numbers(py::module_& m) {
  m.def(
      "number_edges",
      [](const py::array& rows, const py::array& owner, const py::array& offset, const PyRowFile& old_ids,
         const PyRowFile& new_ids, int64_t id_width, int64_t chunk_edges, int num_threads,
         std::optional<py::function> progress) {
        const int64_t num_parts = offset.size() - 1;
        EdgeNumberSpec spec{};
        spec.row = read_ids(rows, "rows");
        spec.num_edges = rows.size();
        spec.owner = full_book(owner, num_parts, "owner");
        spec.offset = read<int64_t>(offset, "offset");
        require(spec.offset[0] == 0 && std::is_sorted(spec.offset, spec.offset + num_parts + 1) &&
                    spec.offset[num_parts] == spec.num_edges,
                "offset: expected the ranges of the partitions, from 0 to ", spec.num_edges);
        require(id_width == 8 || (id_width == 4 && spec.num_edges <= int64_t{1} << 31), "id_width = ", id_width,
                ": expected 4 (for at most 2^31 edges) or 8, there are ", spec.num_edges, " edges");
        spec.old_ids = row_file(old_ids);
        spec.new_ids = row_file(new_ids);
        spec.id_width = id_width;
        spec.chunk_edges = chunk_edges;
        const int threads = checked_threads(num_threads);
        const Progress report = progress_of(progress);
        WithoutGil nogil;
        number_edges(spec, threads, report);
      },
      "Writes the old id of each new id of an edge, and the new id of each old one, as ints of id_width bytes. Edges "
      "go with the owner of their row, owner [num_nodes]; partition p has the new ids from offset[p] on, in the order "
      "of "
      "the edges.",
      py::arg("rows"), py::arg("owner"), py::arg("offset"), py::arg("old_ids"), py::arg("new_ids"), py::arg("id_width"),
      py::arg("chunk_edges"), py::arg("num_threads") = 1, py::arg("progress") = py::none());
}

void register_sort(py::module_& m) {
  m.def(
      "edge_sort_plan",
      [](int64_t num_edges, int64_t num_ids, int64_t weight_bytes, bool has_time, int64_t indices_width,
         int64_t edge_ids_width, int64_t thread_bytes) {
        EdgeList edges{};
        edges.num_edges = num_edges;
        edges.num_ids = num_ids;
        require(weight_bytes == 0 || weight_bytes == 4 || weight_bytes == 8, "weight_bytes = ", weight_bytes,
                ": expected 0 (no weights), 4 or 8");
        if (weight_bytes) edges.weight = Column{nullptr, weight_bytes, static_cast<int>(weight_bytes)};
        if (has_time) edges.time = Column{nullptr, 8, 8};
        const SortPlan plan = plan_of(edges, indices_width, edge_ids_width, thread_bytes);
        return py::make_tuple(plan.thread_bytes, plan.scratch_bytes, plan.bucket_edges);
      },
      "Returns (memory of each thread, bytes of the scratch file, edges of a bucket) of sort_edges.",
      py::arg("num_edges"), py::arg("num_ids"), py::arg("weight_bytes"), py::arg("has_time"), py::arg("indices_width"),
      py::arg("edge_ids_width"), py::arg("thread_bytes"));
  m.def(
      "count_rows",
      [](const py::array& rows, const py::array& cols, const py::array& position, const py::array& owner,
         const py::array& neighbor_owner, int64_t num_parts, py::array indptr, int num_threads,
         std::optional<py::function> progress) {
        const EdgeList edges = edge_list(rows, cols, owner.size(), neighbor_owner.size());
        const RowOrder order{read_positions(position, edges.num_nodes), full_book(owner, num_parts, "owner"),
                             full_book(neighbor_owner, num_parts, "neighbor_owner")};
        require_size(indptr, "indptr", edges.num_nodes + 1);
        int64_t* offsets = write<int64_t>(indptr, "indptr");
        const int threads = checked_threads(num_threads);
        const Progress report = progress_of(progress);
        WithoutGil nogil;
        return count_rows(edges, order, offsets, threads, report);
      },
      "Fills indptr [num_nodes + 1] int64 for rows by position, and returns how many edges are cut.", py::arg("rows"),
      py::arg("cols"), py::arg("position"), py::arg("owner"), py::arg("neighbor_owner"), py::arg("num_parts"),
      py::arg("indptr"), py::arg("num_threads") = 1, py::arg("progress") = py::none());
  m.def(
      "sort_edges",
      [](const py::array& rows, const py::array& cols, std::optional<py::array> weight, std::optional<py::array> time,
         bool time_of_neighbor, int64_t num_neighbors, const py::array& position, std::vector<int64_t> first_row,
         py::array indptr, const PyGraphFiles& files, int64_t indices_width, int64_t edge_ids_width, int scratch,
         int64_t thread_bytes, int num_threads, std::optional<py::function> progress,
         std::optional<py::array> neighbor_id, std::optional<py::array> edge_id, std::optional<int64_t> num_ids) {
        EdgeList edges = edge_list(rows, cols, position.size(), num_neighbors);
        edges.num_ids = num_ids.value_or(edges.num_edges);
        require(edges.num_ids >= edges.num_edges, "num_ids = ", edges.num_ids,
                ": expected at least the number of edges, ", edges.num_edges);
        if (weight) {
          require_size(*weight, "weight", edges.num_edges);
          edges.weight = read_column(*weight, "weight", "f", "float32 or float64");
          require(edges.weight->width >= 4, "weight: expected float32 or float64, got float16");
        }
        if (time) {
          require_size(*time, "time", time_of_neighbor ? num_neighbors : edges.num_edges);
          edges.time = read_column(*time, "time", "iu", "integers");
          edges.time_of_neighbor = time_of_neighbor;
        }
        if (neighbor_id) edges.neighbor_id = read_positions(*neighbor_id, num_neighbors);
        if (edge_id) {
          require_size(*edge_id, "edge_id", edges.num_edges);
          edges.edge_id = read_column(*edge_id, "edge_id", "iu", "integers");
        }
        const SortPlan plan = plan_of(edges, indices_width, edge_ids_width, thread_bytes);
        RowOrder order{};
        order.position = read_positions(position, edges.num_nodes);
        require_size(indptr, "indptr", edges.num_nodes + 1);
        int64_t* offsets = write<int64_t>(indptr, "indptr");
        require(offsets[0] == 0 && offsets[edges.num_nodes] == edges.num_edges &&
                    std::is_sorted(offsets, offsets + edges.num_nodes + 1),
                "indptr: expected what count_rows made of these edges");
        require(!first_row.empty() && first_row.front() == 0 && first_row.back() == edges.num_nodes &&
                    std::is_sorted(first_row.begin(), first_row.end()),
                "first_row: expected the rows at which partitions begin, from 0 to ", edges.num_nodes);
        PartGraphs::Files out;
        for (size_t a = 0; a < out.size(); ++a) {
          const bool wanted = a == PartGraphs::kIndices || a == PartGraphs::kEdgeIds ||
                              (a <= PartGraphs::kWeightGuide ? weight.has_value() : time.has_value());
          require(files[a].size() == (wanted ? first_row.size() - 1 : 0), "files[", a, "] has ", files[a].size(),
                  " files: expected one per partition of each array that is wanted");
          out[a] = row_files(files[a]);
        }
        const int threads = checked_threads(num_threads);
        const Progress report = progress_of(progress);
        WithoutGil nogil;
        PartGraphs graphs(std::move(out), std::move(first_row), offsets);
        sort_edges(edges, order, plan, offsets, graphs, scratch, threads, report);
      },
      "Writes the rows of all partitions: files[array][partition], arrays being indices, edge_ids, weight_sum, "
      "weight_guide and, sorted by time, indices, edge_ids and time. neighbor_id [num_neighbors] and edge_id "
      "[num_edges], below num_ids, are written in place of neighbours and positions of edges.",
      py::arg("rows"), py::arg("cols"), py::arg("weight"), py::arg("time"), py::arg("time_of_neighbor"),
      py::arg("num_neighbors"), py::arg("position"), py::arg("first_row"), py::arg("indptr"), py::arg("files"),
      py::arg("indices_width"), py::arg("edge_ids_width"), py::arg("scratch"), py::arg("thread_bytes"),
      py::arg("num_threads") = 1, py::arg("progress") = py::none(), py::arg("neighbor_id") = py::none(),
      py::arg("edge_id") = py::none(), py::arg("num_ids") = py::none());
}

}  // namespace

void register_partition_files(py::module_& m) {
  register_files(m);
  register_scatter(m);
  register_numbers(m);
  register_sort(m);
}

}  // namespace glt::python
