#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "core/key_index.h"
#include "python/arrays.h"
#include "python/gil.h"

namespace glt::python {
namespace {

// Columns as Python has them: an array of int64, or (offsets [n + 1], bytes), the offsets rising to the number of bytes
// unless they are of a mapped file.
Keys keys_of(const py::sequence& columns, const char* name) {
  Keys keys;
  keys.num_rows = -1;
  for (const py::handle& given : columns) {
    KeyColumn column;
    int64_t num_rows;
    if (py::isinstance<py::tuple>(given)) {
      const auto pair = py::cast<py::tuple>(given);
      const auto offset = py::cast<py::array>(pair[0]), bytes = py::cast<py::array>(pair[1]);
      require(offset.size() >= 1, name, ": expected offsets, one more than there are keys");
      column.offset = read<int64_t>(offset, name);
      column.bytes = reinterpret_cast<const char*>(read<uint8_t>(bytes, name));
      column.num_bytes = bytes.size();
      num_rows = offset.size() - 1;
    } else {
      const auto integer = py::cast<py::array>(given);
      column.integer = read<int64_t>(integer, name);
      num_rows = integer.size();
    }
    require(keys.num_rows < 0 || keys.num_rows == num_rows, name, " has columns of ", keys.num_rows, " and of ",
            num_rows, " keys: expected as many in each");
    keys.num_rows = num_rows;
    keys.columns.push_back(column);
  }
  require(!keys.columns.empty(), name, " is empty: expected a column");
  return keys;
}

KeyIndex index_of(py::array& slots) {
  uint64_t* slot = const_cast<uint64_t*>(read<uint64_t>(slots, "slots"));
  const int64_t count = slots.size();
  require(count > 0 && (count & (count - 1)) == 0, "slots has ", count, " elements: expected a power of two");
  return {slot, count};
}

void add_keys(py::array& slots, const py::sequence& columns, int64_t first_id) {
  KeyIndex index = index_of(slots);
  write<uint64_t>(slots, "slots");
  const Keys keys = keys_of(columns, "columns");
  require(first_id >= 0 && first_id + keys.num_rows < (int64_t{1} << KeyIndex::kIdBits), "first_id = ", first_id,
          ": expected ids below 2^", KeyIndex::kIdBits);
  bool has_room;
  {
    WithoutGil nogil;
    has_room = index.add(keys, first_id);
  }
  require(has_room, "slots has ", slots.size(), " elements, which are all used: expected more than there are keys");
}

py::array find_keys(py::array& slots, const py::sequence& columns, const py::sequence& wanted) {
  const KeyIndex index = index_of(slots);
  const Keys keys = keys_of(columns, "columns"), looked_up = keys_of(wanted, "wanted");
  require(keys.columns.size() == looked_up.columns.size(), "wanted has ", looked_up.columns.size(),
          " columns: expected ", keys.columns.size());
  for (size_t c = 0; c < keys.columns.size(); ++c)
    require(keys.columns[c].is_text() == looked_up.columns[c].is_text(), "wanted: column ", c, " is of the other kind");
  py::array_t<int64_t> ids(looked_up.num_rows);
  int64_t* id = ids.mutable_data();
  {
    WithoutGil nogil;
    index.find(keys, looked_up, id);
  }
  return ids;
}

// The UTF-8 bytes of a list of str, or None if an item is none; the item is `bad` then.
py::tuple encode_texts(const py::list& texts) {
  const auto n = static_cast<int64_t>(texts.size());
  py::array_t<int64_t> offsets(n + 1);
  int64_t* offset = offsets.mutable_data();
  std::string bytes;
  offset[0] = 0;
  for (int64_t i = 0; i < n; ++i) {
    PyObject* item = PyList_GET_ITEM(texts.ptr(), i);
    if (!PyUnicode_Check(item)) return py::make_tuple(py::none(), i);
    Py_ssize_t size;
    const char* data = PyUnicode_AsUTF8AndSize(item, &size);
    if (data == nullptr) {  // a half of a surrogate pair
      PyErr_Clear();
      return py::make_tuple(py::none(), i);
    }
    bytes.append(data, static_cast<size_t>(size));
    offset[i + 1] = static_cast<int64_t>(bytes.size());
  }
  py::array_t<uint8_t> copied(static_cast<py::ssize_t>(bytes.size()));
  std::memcpy(copied.mutable_data(), bytes.data(), bytes.size());
  return py::make_tuple(offsets, copied);
}

// The texts of rows of a column, as str; what is no UTF-8 is replaced.
py::list decode_texts(const py::array& offsets, const py::array& bytes, const py::array& rows) {
  const Keys keys = keys_of(py::make_tuple(py::make_tuple(offsets, bytes)), "column");
  const int64_t n = rows.size(), *row = read<int64_t>(rows, "rows");
  py::list found(n);
  for (int64_t i = 0; i < n; ++i) {
    require_index(row[i] >= 0 && row[i] < keys.num_rows, "row ", row[i], ": expected 0 to ", keys.num_rows - 1);
    const std::string_view text = keys.columns[0].text(row[i]);
    PyObject* made = PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
    if (made == nullptr) throw py::error_already_set();
    PyList_SET_ITEM(found.ptr(), i, made);
  }
  return found;
}

}  // namespace

void register_keys(py::module_& m) {
  m.def("num_key_slots", &KeyIndex::num_slots_for, "Of an index of so many keys.", py::arg("num_keys"));
  m.def("add_keys", &add_keys, "Puts keys into an index, with ids that begin with first_id; see csrc/core/key_index.h.",
        py::arg("slots"), py::arg("columns"), py::arg("first_id"));
  m.def("find_keys", &find_keys, "Returns the ids of wanted keys, -1 of those that are not there.", py::arg("slots"),
        py::arg("columns"), py::arg("wanted"));
  m.def("encode_texts", &encode_texts, "Returns (offsets, bytes) of a list of str, or (None, i) if item i is none.",
        py::arg("texts"));
  m.def("decode_texts", &decode_texts, "Returns rows of a column of texts as a list of str.", py::arg("offsets"),
        py::arg("bytes"), py::arg("rows"));
}

}  // namespace glt::python
