// Which request brings the row of an id, for batches that ask for each row once.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

namespace glt {

// Ids that were claimed, each by the first request that asked for it, in an open hash table: 16 bytes a slot, of which
// half are used at most. Nothing is taken back: a table lives as long as the answers to its requests are kept. Calls
// may come from several threads.
class RowClaims {
 public:
  // Of ids that a request has claimed before: they end there, and begin where those of the group before end.
  struct Group {
    uint32_t request;
    int64_t end;
  };

  // Sorts ids [n] into those that nobody has claimed, which `request` then has, as ids with positions in order, and the
  // others, as rows of the answer to the request that has them, with positions, grouped by request, in order within a
  // group. Returns how many are new. Row i of the answer to a request is that of the i-th id that was new to it, so a
  // request claims once; an id that comes twice is new once. Outputs have room for n.
  int64_t claim(const int64_t* ids, const uint32_t* positions, int64_t n, uint32_t request, int64_t* fresh,
                uint32_t* fresh_positions, int64_t* rows, uint32_t* row_positions, std::vector<Group>& groups);

  int64_t num_ids() const;

 private:
  static constexpr uint32_t kFree = UINT32_MAX;
  struct Slot {
    int64_t id = 0;
    uint32_t request = kFree;
    uint32_t row = 0;
  };
  Slot* home_of(int64_t id);
  Slot& find(int64_t id);  // its slot, or the free one where it belongs
  void grow();

  mutable std::mutex mutex_;
  std::vector<Slot> slots_;  // a power of two
  int shift_ = 64;
  int64_t used_ = 0;
};

}  // namespace glt
