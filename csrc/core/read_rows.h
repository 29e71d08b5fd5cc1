// Reading the rows of a graph, which lies here in one piece or in those of its partitions, on several threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "core/check.h"
#include "core/csr.h"
#include "core/memory.h"
#include "core/sample.h"
#include "core/threads.h"

namespace glt {

// Where the rows that several partitions have are put together, kept between calls so that its memory is reused.
class PartScratch {
 public:
  // Sorts `rows` by owner, has read(part, rows, RowSamples& out) read each owner's share, kChunkRows at a time, and
  // appends all to `out` in the order of `rows`.
  template <typename Read>
  void read(const Book& book, const Rows& rows, RowSamples& out, const Read& read) {
    const Rows sorted = sort(book, rows);
    for (int64_t p = 0; p < book.num_parts; ++p) {
      found_[p].clear();
      for (int64_t first = bound_[p]; first < bound_[p + 1]; first += kChunkRows)
        read(p, sorted.slice(first, std::min(kChunkRows, bound_[p + 1] - first)), found_[p]);
    }
    put_together(rows.n, out);
  }
  void end_use() {  // of what grows with a row
    for (RowSamples& found : found_) found.end_use();
  }

 private:
  Rows sort(const Book& book, const Rows& rows);
  void put_together(int64_t n, RowSamples& out);

  Buffer<int64_t> node_, time_;
  Buffer<uint32_t> tree_, position_, part_;
  std::vector<int64_t> bound_;
  std::vector<RowSamples> found_;  // by part
  struct Cursor {
    const uint32_t* count;
    const int64_t *neighbor, *edge;
  };
  std::vector<Cursor> next_;  // by part
};

// A graph of one edge type that lies here as a whole: in one piece, or in those of its partitions.
class PartedCsr {
 public:
  PartedCsr() = default;  // no edges
  explicit PartedCsr(const CsrView& whole) : parts_{whole} {}
  // By partition: the rows of the nodes that each owns, as the first one's book says. Throws std::invalid_argument
  // unless they are as many as its partitions, in order, and have the same numbers of nodes and the same columns.
  explicit PartedCsr(std::vector<CsrView> parts);

  bool has_edges() const { return !parts_.empty(); }
  int64_t num_nodes() const { return parts_[0].num_nodes; }
  int64_t num_neighbor_nodes() const { return parts_[0].num_neighbor_nodes; }

  // Rows to read together: of each partition enough that their loads keep each other company.
  int64_t chunk_rows() const {
    return kChunkRows * std::clamp<int64_t>(static_cast<int64_t>(parts_.size()), 1, kMostShares);
  }

  // Has read(csr, rows, out, name, first_index) append what it reads of the rows, chunk_rows() of them at most, to
  // `out`: from the arrays where they are, and kChunkRows at a time.
  template <typename Read>
  void read_rows(const Rows& rows, PartScratch& scratch, RowSamples& out, const char* name, int64_t first_index,
                 const Read& read) const {
    if (!book_) return read(parts_[0], rows, out, name, first_index);
    scratch.read(*book_, rows, out, [&](int64_t part, const Rows& share, RowSamples& found) {
      read(parts_[part], share, found, "nodes of a partition", 0);
    });
  }

  // found[i] = 1 if center[i] has an edge with neighbor[i], else 0; see has_edges.
  void find_edges(const int64_t* center, const int64_t* neighbor, int64_t n, uint8_t* found) const;

 private:
  static constexpr int64_t kMostShares = 32;  // beyond that chunks take memory

  std::vector<CsrView> parts_;
  std::optional<Book> book_;  // of several partitions
};

// A chunk being read or waiting to be consumed.
struct ChunkSlot {
  RowSamples rows;
  std::exception_ptr error;
  // Chunk number + 1 once its rows may be read. Waited for: a line of its own.
  alignas(64) std::atomic<int64_t> ready{0};
};

// What one thread reads with.
struct ReadScratch {
  RowScratch rows;
  PartScratch parts;
};

// The memory that one caller reads ahead with, kept between calls, as ExpectedRoom says, from one end_use to the next.
struct ReadBuffers {
  std::vector<std::unique_ptr<ChunkSlot>> slots;
  std::vector<std::unique_ptr<ReadScratch>> scratch;  // by thread, the calling one first

  void end_use() {
    for (auto& slot : slots) slot->rows.end_use();
    for (auto& each : scratch) {
      each->rows.end_use();
      each->parts.end_use();
    }
  }
};

// Cuts n rows into chunks of chunk_rows, has each read by read(first, count, ReadScratch&, RowSamples& out) on one of
// up to num_threads threads, and hands the chunks in order to consume(const RowSamples&, first, count), always on the
// calling thread. While that thread consumes, the others read ahead: reading waits for memory and consuming
// (relabelling) is shorter, so the threads keep each other busy, and the result cannot depend on how many there are.
template <typename Read, typename Consume>
void read_in_order(int64_t n, int64_t chunk_rows, int num_threads, ReadBuffers& buffers, const Read& read,
                   const Consume& consume) {
  const int64_t num_chunks = (n + chunk_rows - 1) / chunk_rows;
  const int helpers = num_chunks < 4 ? 0 : num_threads - 1;
  // As many rows ahead, whatever the chunks; and one for each thread to read while another waits.
  const int64_t num_slots =
      helpers > 0 ? std::max(16 * num_threads * kChunkRows / chunk_rows, int64_t{2} * num_threads) : 1;
  auto& slots = buffers.slots;
  while (static_cast<int64_t>(slots.size()) < num_slots) slots.push_back(std::make_unique<ChunkSlot>());
  while (static_cast<int>(buffers.scratch.size()) <= helpers)
    buffers.scratch.push_back(std::make_unique<ReadScratch>());

  // Chunks [consumed, next) are being read or wait. Each on a line of its own: different threads write them.
  alignas(64) std::atomic<int64_t> next{0};
  alignas(64) std::atomic<int64_t> consumed{0};
  alignas(64) std::atomic<bool> stop{false};
  std::atomic<size_t> num_readers{0};

  struct Reader {
    ReadScratch& scratch;
    int64_t consumed = 0;  // as far as it knows: looking costs a line that the consumer writes all the time
  };
  const auto read_one = [&](Reader& reader) -> bool {
    int64_t chunk = next.load(std::memory_order_relaxed);
    if (chunk >= num_chunks) return false;
    if (chunk >= reader.consumed + num_slots) reader.consumed = consumed.load(std::memory_order_acquire);
    if (chunk >= reader.consumed + num_slots) return false;
    if (!next.compare_exchange_strong(chunk, chunk + 1, std::memory_order_relaxed)) return true;
    ChunkSlot& slot = *slots[chunk % num_slots];
    const int64_t first = chunk * chunk_rows, count = std::min(chunk_rows, n - first);
    slot.rows.clear();
    slot.error = nullptr;
    try {
      read(first, count, reader.scratch, slot.rows);
    } catch (...) {
      slot.error = std::current_exception();
    }
    slot.ready.store(chunk + 1, std::memory_order_release);
    return true;
  };

  std::exception_ptr error;
  const auto main = [&] {
    Reader reader{*buffers.scratch[0]};
    try {
      for (int64_t chunk = 0; chunk < num_chunks; ++chunk) {
        ChunkSlot& slot = *slots[chunk % num_slots];
        Backoff backoff;
        while (slot.ready.load(std::memory_order_acquire) != chunk + 1)
          if (!read_one(reader)) backoff.pause();
        if (slot.error) std::rethrow_exception(slot.error);
        const int64_t first = chunk * chunk_rows;
        consume(slot.rows, first, std::min(chunk_rows, n - first));
        consumed.store(chunk + 1, std::memory_order_release);
      }
    } catch (...) {
      error = std::current_exception();
    }
    stop.store(true, std::memory_order_release);
  };
  const auto helper = [&] {
    Reader reader{*buffers.scratch[1 + num_readers.fetch_add(1)]};  // each of the helpers starts once at most
    Backoff backoff;
    while (!stop.load(std::memory_order_acquire) && next.load(std::memory_order_relaxed) < num_chunks)
      if (!read_one(reader)) backoff.pause();
  };
  for (auto& slot : slots) slot->ready.store(0, std::memory_order_relaxed);
  run_with_helpers(helpers, main, helper);
  if (error) std::rethrow_exception(error);
}

// The samples of `rows`, as sample_rows makes them.
template <typename Consume>
void sample_in_order(const PartedCsr& graph, const Rows& rows, const HopSpec& spec, int num_threads,
                     ReadBuffers& buffers, const char* name, const Consume& consume) {
  check_spec(spec);
  const auto read = [&](int64_t first, int64_t count, ReadScratch& scratch, RowSamples& out) {
    const auto sample = [&](const CsrView& csr, const Rows& some, RowSamples& found, const char* name, int64_t first) {
      sample_rows(csr, some, spec, scratch.rows, found, name, first);
    };
    graph.read_rows(rows.slice(first, count), scratch.parts, out, name, first, sample);
  };
  read_in_order(rows.n, graph.chunk_rows(), num_threads, buffers, read, consume);
}

// What one partition answered for the rows that it owns.
struct RowsPart {
  const uint32_t* position;  // [num_rows], where each row stands in the question
  const uint32_t* count;     // [num_rows], edges of each row
  int64_t num_rows;
  Ids neighbor;  // [num_edges]
  Ids edge;      // [num_edges]; unused without edges
  int64_t num_edges;
};

// Puts the answers of partitions back into the order of the question.
class PartMerger {
 public:
  // Hands the rows to consume(rows, first, count) in chunks, in order. Throws std::invalid_argument, before the first
  // chunk, unless the parts answer for each of the `num_rows` rows of `question` (a name for messages) exactly once.
  void merge(const std::vector<RowsPart>& parts, int64_t num_rows, bool with_edge, const char* question,
             const std::function<void(const RowSamples&, int64_t, int64_t)>& consume);

  void end_use() {
    part_of_.end_use();
    begin_.end_use();
    count_.end_use();
    rows_.end_use();
  }

 private:
  Buffer<uint32_t> part_of_;  // per row
  Buffer<int64_t> begin_;     // per row: where it begins in its part
  Buffer<uint32_t> count_;    // per row
  RowSamples rows_;
};

}  // namespace glt
