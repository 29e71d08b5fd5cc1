#include "python/book.h"

#include <memory>
#include <utility>

#include "python/without_gil.h"

namespace glt::python {

PartitionBook::PartitionBook(py::array owner, int64_t num_parts)
    : array_(std::move(owner)), view_{static_cast<const uint8_t*>(nullptr), array_.size(), num_parts} {
  require(num_parts >= 1, "num_parts = ", num_parts, ": expected at least 1");
  std::visit([&](auto* owners) { view_.owner = owners; }, owner_array(array_, num_parts, "owner").owner);
}

PartitionBook::PartitionBook(py::array offset) : array_(std::move(offset)) {
  const int64_t* at = read<int64_t>(array_, "offset");
  const int64_t num_parts = array_.size() - 1;
  require(num_parts >= 1, "offset has ", array_.size(), " elements: expected one more than partitions, at least 2");
  require(at[0] == 0, "offset[0] = ", at[0], ": expected 0");
  for (int64_t p = 0; p < num_parts; ++p)
    require(at[p] <= at[p + 1], "offset[", p + 1, "] = ", at[p + 1], " is below offset[", p, "] = ", at[p],
            ": expected ranges of ids, one behind the other");
  view_ = {Ranges{at, num_parts}, at[num_parts], num_parts};
}

std::pair<int64_t, int64_t> PartitionBook::range(int64_t part) const {
  const auto* ranges = std::get_if<Ranges>(&view_.owner);
  require(ranges, "the book has no ranges: it lists the owner of each id");
  require(part >= 0 && part < view_.num_parts, "part = ", part, ": expected 0 to ", view_.num_parts - 1);
  return {ranges->offset[part], ranges->offset[part + 1] - ranges->offset[part]};
}

void register_book(py::module_& m) {
  py::class_<PartitionBook, std::shared_ptr<PartitionBook>>(m, "Book")
      .def(py::init<py::array, int64_t>(), py::arg("owner"), py::arg("num_parts"))
      .def_static(
          "of_ranges", [](py::array offset) { return std::make_shared<PartitionBook>(std::move(offset)); },
          py::arg("offset"))
      .def_property_readonly("num_ids", [](const PartitionBook& b) { return b.view().num_ids; })
      .def_property_readonly("num_parts", [](const PartitionBook& b) { return b.view().num_parts; });

  m.def(
      "group_by_owner",
      [](const PartitionBook& book, const py::array& ids) {
        const int64_t* p = read<int64_t>(ids, "ids");
        const int64_t n = ids.size();
        py::array_t<int64_t> grouped(n), begin(book.view().num_parts + 1);
        py::array_t<uint32_t> position(n);
        int64_t *g = grouped.mutable_data(), *b = begin.mutable_data();
        uint32_t* pos = position.mutable_data();
        {
          WithoutGil nogil;
          group_by_owner(book.view(), p, n, g, pos, b);
        }
        return py::make_tuple(grouped, position, begin);
      },
      "Returns (ids grouped by owner, where each stood, [num_parts + 1] bounds of the groups).", py::arg("book"),
      py::arg("ids"));

  m.def(
      "find_owners",
      [](const PartitionBook& book, const py::array& ids) {
        const int64_t* p = read<int64_t>(ids, "ids");
        const int64_t n = ids.size();
        py::array_t<int64_t> owners(n);
        int64_t* out = owners.mutable_data();
        {
          WithoutGil nogil;
          find_owners(book.view(), p, n, out);
        }
        return owners;
      },
      "The partition that owns each id.", py::arg("book"), py::arg("ids"));

  m.def(
      "require_owned",
      [](const PartitionBook& book, const py::array& ids, int64_t part) {
        const int64_t* p = read<int64_t>(ids, "ids");
        const int64_t n = ids.size();
        require(part >= 0 && part < book.view().num_parts, "part = ", part, ": expected 0 to ",
                book.view().num_parts - 1);
        WithoutGil nogil;
        require_owned(book.view(), p, n, part);
      },
      py::arg("book"), py::arg("ids"), py::arg("part"));
}

}  // namespace glt::python
