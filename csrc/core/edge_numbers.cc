#include "core/edge_numbers.h"

#include <algorithm>
#include <variant>
#include <vector>

#include "core/buffer.h"
#include "core/check.h"

namespace glt {
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

void number_edges(const EdgeNumberSpec& spec, int num_threads, const Tick& tick) {
  require(spec.chunk_edges >= 1, "chunk_edges = ", spec.chunk_edges, ": expected at least 1");
  std::vector<int64_t> next(spec.offset, spec.offset + spec.owner.num_parts);
  WorkItems items((spec.num_edges + spec.chunk_edges - 1) / spec.chunk_edges, num_threads, tick);
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
