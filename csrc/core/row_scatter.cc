#include "core/row_scatter.h"

#include <algorithm>
#include <cstring>

#include "core/buffer.h"
#include "core/check.h"

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

void scatter_rows(const ScatterSpec& spec, int64_t* filled, int num_threads, const Tick& tick) {
  require(spec.chunk_rows >= 1, "chunk_rows = ", spec.chunk_rows, ": expected at least 1");
  WorkItems items((spec.n + spec.chunk_rows - 1) / spec.chunk_rows, num_threads, tick);
  items.run([&] { return Scatterer(spec, filled, items); });
}

}  // namespace glt
