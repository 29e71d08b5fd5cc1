#include "core/scatter.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <variant>
#include <vector>

#include "core/check.h"
#include "core/memory.h"

namespace glt {
namespace {

// A copy of a length that the compiler knows is a move or two.
template <size_t kBytes>
void copy_rows(const std::byte* from, int64_t stride, std::byte* const* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) std::memcpy(to[i], from + i * stride, kBytes);
}

class Scatterer {
 public:
  Scatterer(const ScatterSpec& spec, int64_t* filled, WorkItems& items) : spec_(spec), filled_(filled), items_(items) {
    count_.resize(spec.book.num_parts);
    std::fill_n(count_.data(), count_.size(), 0);
    base_.resize(spec.book.num_parts);
    begin_.resize(spec.book.num_parts);
  }

  int64_t operator()(int64_t item) {
    first_ = item * spec_.chunk_rows;
    n_ = std::min(spec_.chunk_rows, spec_.n - first_);
    find_owners();
    items_.in_turn(item, [&] {
      for (const int64_t part : parts_) {
        base_[part] = filled_[part];
        filled_[part] += count_[part];
      }
    });
    int64_t bytes = write_rows();
    if (spec_.owner_file) bytes += write_owners();
    if (spec_.place_file) bytes += write_places();
    for (const int64_t part : parts_) count_[part] = 0;
    return bytes;
  }

 private:
  void find_owners() {
    owner_.resize(n_);
    parts_.clear();
    const auto find = [&](const auto* owner, const auto& id_of) {
      for (int64_t i = 0; i < n_; ++i) {
        const uint64_t id = id_of(i);
        require_index(id < static_cast<uint64_t>(spec_.book.num_ids), "id ", static_cast<int64_t>(id), " of row ",
                      spec_.first + first_ + i, " is outside [0, ", spec_.book.num_ids, ")");
        const uint32_t part = owner[id];
        require_index(part < spec_.book.num_parts, "owner ", part, " of id ", id, " is outside [0, ",
                      spec_.book.num_parts, ")");
        owner_[i] = part;
        if (count_[part]++ == 0) parts_.push_back(part);
      }
    };
    std::visit(
        [&](const auto* owner) {
          if (!spec_.ids) return find(owner, [&](int64_t i) { return spec_.first + first_ + i; });
          std::visit([&](const auto* id) { find(owner, [&](int64_t i) { return id[first_ + i]; }); }, *spec_.ids);
        },
        spec_.book.owner);
    std::sort(parts_.begin(), parts_.end());
  }

  int64_t write_rows() {
    const int64_t bytes = spec_.row_bytes;
    rows_.resize(n_ * bytes);
    to_.resize(n_);
    int64_t begin = 0;
    for (const int64_t part : parts_) {
      begin_[part] = begin;
      begin += count_[part];
    }
    for (int64_t i = 0; i < n_; ++i) to_[i] = rows_.data() + begin_[owner_[i]]++ * bytes;
    const std::byte* from = spec_.table + first_ * spec_.row_stride;
    switch (bytes) {
      case 1:
        copy_rows<1>(from, spec_.row_stride, to_.data(), n_);
        break;
      case 4:
        copy_rows<4>(from, spec_.row_stride, to_.data(), n_);
        break;
      case 8:
        copy_rows<8>(from, spec_.row_stride, to_.data(), n_);
        break;
      default:
        for (int64_t i = 0; i < n_; ++i) std::memcpy(to_[i], from + i * spec_.row_stride, bytes);
    }
    const std::byte* at = rows_.data();
    for (const int64_t part : parts_) {
      const RowFile& out = spec_.files[part];
      out.file->write(out.header_bytes + base_[part] * bytes, at, count_[part] * bytes);
      at += count_[part] * bytes;
    }
    return n_ * bytes;
  }

  int64_t write_owners() {
    return std::visit(
        [&](const auto* owner) {
          using Owner = std::remove_cv_t<std::remove_pointer_t<decltype(owner)>>;
          narrow_.resize(n_ * sizeof(Owner));
          for (int64_t i = 0; i < n_; ++i) {
            const Owner value = static_cast<Owner>(owner_[i]);
            std::memcpy(narrow_.data() + i * sizeof(Owner), &value, sizeof(Owner));
          }
          return write_column(*spec_.owner_file, narrow_.data(), sizeof(Owner));
        },
        spec_.book.owner);
  }

  int64_t write_places() {
    place_.resize(n_);
    for (int64_t i = 0; i < n_; ++i) {
      const int64_t place = base_[owner_[i]]++;
      require(place <= UINT32_MAX, "partition ", owner_[i], " has more than 2^32 rows: use more partitions");
      place_[i] = static_cast<uint32_t>(place);
    }
    return write_column(*spec_.place_file, place_.data(), sizeof(uint32_t));
  }

  int64_t write_column(const RowFile& out, const void* data, int64_t width) {
    out.file->write(out.header_bytes + (spec_.first + first_) * width, data, n_ * width);
    return n_ * width;
  }

  const ScatterSpec& spec_;
  int64_t* filled_;
  WorkItems& items_;
  int64_t first_ = 0, n_ = 0;
  std::vector<int64_t> parts_;            // those that own rows of this chunk, ascending
  Buffer<int64_t> count_, base_, begin_;  // by part
  Buffer<uint32_t> owner_, place_;        // by row
  Buffer<std::byte*> to_;                 // by row
  Buffer<std::byte> rows_, narrow_;
};

}  // namespace

void scatter_rows(const ScatterSpec& spec, int64_t* filled, int num_threads, const Progress& progress) {
  require(spec.chunk_rows >= 1, "chunk_rows = ", spec.chunk_rows, ": expected at least 1");
  WorkItems items((spec.n + spec.chunk_rows - 1) / spec.chunk_rows, num_threads, progress);
  items.run([&] { return Scatterer(spec, filled, items); });
}

namespace {

template <typename Id>
class Numberer {
 public:
  Numberer(const EdgeNumberSpec& spec, std::vector<int64_t>& next, WorkItems& items)
      : spec_(spec), next_(next), items_(items), base_(next.size()), at_(next.size()), count_(next.size()) {}

  int64_t operator()(int64_t item) {
    first_ = item * spec_.chunk_edges;
    n_ = std::min(spec_.chunk_edges, spec_.num_edges - first_);
    find_owners();
    items_.in_turn(item, [&] {
      for (const uint32_t part : parts_) {
        base_[part] = next_[part];
        next_[part] += count_[part];
        require(next_[part] <= spec_.offset[part + 1], "partition ", part, " has more edges than its ",
                spec_.offset[part + 1] - spec_.offset[part], " new ids: edge_index was changed while it was read");
      }
    });
    number();
    write();
    for (const uint32_t part : parts_) count_[part] = 0;
    return 2 * n_ * static_cast<int64_t>(sizeof(Id));
  }

 private:
  void find_owners() {
    owner_.resize(n_);
    parts_.clear();
    std::visit(
        [&](const auto* row, const auto* owner) {
          for (int64_t i = 0; i < n_; ++i) {
            const int64_t node = row[first_ + i];
            require_index(static_cast<uint64_t>(node) < static_cast<uint64_t>(spec_.owner.num_ids), "the row of edge ",
                          first_ + i, " is ", node, ", outside [0, ", spec_.owner.num_ids, ")");
            const uint32_t part = owner[node];
            require_index(part < spec_.owner.num_parts, "owner ", part, " of node ", node, " is outside [0, ",
                          spec_.owner.num_parts, ")");
            owner_[i] = part;
            if (count_[part]++ == 0) parts_.push_back(part);
          }
        },
        spec_.row, spec_.owner.owner);
    std::sort(parts_.begin(), parts_.end());
  }

  // Old ids come group after group, as they go to the file; new ids edge after edge.
  void number() {
    old_.resize(n_);
    new_.resize(n_);
    int64_t begin = 0;
    for (const uint32_t part : parts_) {
      at_[part] = begin;
      base_[part] -= begin;  // so that a place in the group is a new id, too
      begin += count_[part];
    }
    for (int64_t i = 0; i < n_; ++i) {
      const uint32_t part = owner_[i];
      const int64_t at = at_[part]++;
      old_[at] = static_cast<Id>(first_ + i);
      new_[i] = static_cast<Id>(base_[part] + at);
    }
  }

  void write() {
    constexpr int64_t kWidth = sizeof(Id);
    const auto put = [&](const RowFile& out, int64_t row, const Id* ids, int64_t n) {
      out.file->write(out.header_bytes + row * kWidth, ids, n * kWidth);
    };
    put(spec_.new_ids, first_, new_.data(), n_);
    int64_t begin = 0;
    for (const uint32_t part : parts_) {
      put(spec_.old_ids, base_[part] + begin, old_.data() + begin, count_[part]);
      begin += count_[part];
    }
  }

  const EdgeNumberSpec& spec_;
  std::vector<int64_t>& next_;  // by part: the new id of its next edge
  WorkItems& items_;
  int64_t first_ = 0, n_ = 0;
  std::vector<uint32_t> parts_;             // those that own edges of this chunk, ascending
  std::vector<int64_t> base_, at_, count_;  // by part
  Buffer<uint32_t> owner_;                  // by edge of the chunk
  Buffer<Id> old_, new_;                    // likewise
};

}  // namespace

void number_edges(const EdgeNumberSpec& spec, int num_threads, const Progress& progress) {
  require(spec.chunk_edges >= 1, "chunk_edges = ", spec.chunk_edges, ": expected at least 1");
  std::vector<int64_t> next(spec.offset, spec.offset + spec.owner.num_parts);
  WorkItems items((spec.num_edges + spec.chunk_edges - 1) / spec.chunk_edges, num_threads, progress);
  if (spec.id_width == 4)
    items.run([&] { return Numberer<int32_t>(spec, next, items); });
  else
    items.run([&] { return Numberer<int64_t>(spec, next, items); });
  for (int64_t part = 0; part < spec.owner.num_parts; ++part)
    require(next[part] == spec.offset[part + 1], "partition ", part, " has ", next[part] - spec.offset[part],
            " edges and ", spec.offset[part + 1] - spec.offset[part],
            " new ids: edge_index was changed while it was read");
}

}  // namespace glt
