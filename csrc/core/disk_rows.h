// Rows of a table in a file that is larger than memory: many are read at a time, past the page cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace glt {

// From any thread, and in forks of the process that made it.
class DiskRows {
 public:
  // What one call of read() asked the disk for.
  struct Reads {
    int64_t num_reads = 0, num_bytes = 0;
  };

  // Rows [num_rows, row_bytes] from byte `offset` of the file on. One read may take `timeout_s`. Throws
  // std::system_error if the file cannot be opened.
  DiskRows(std::string path, int64_t offset, int64_t row_bytes, int64_t num_rows, double timeout_s);
  DiskRows(const DiskRows&) = delete;
  DiskRows& operator=(const DiskRows&) = delete;
  ~DiskRows();

  int64_t row_bytes() const { return row_bytes_; }
  int64_t num_rows() const { return num_rows_; }
  // Why rows are read through the page cache, one after the other; empty: they are not.
  const std::string& why_buffered() const { return why_buffered_; }

  // out[i] = row rows[i] of n. Rows near each other are read together, and one that is wanted twice once. Takes 16
  // bytes for each, and 8 MiB for each thread that reads, which is kept for later calls. Throws std::out_of_range for a
  // row outside the table, and std::system_error naming the file and the row, if it is shorter now, cannot be read or
  // takes too long.
  Reads read(const int64_t* rows, int64_t n, std::byte* out) const;

 private:
  struct Wanted {
    int64_t row, to;
  };
  // Rows that lie together: bytes [begin, end) of the file, and those of them that are wanted.
  struct Piece {
    int64_t begin, end;
    const Wanted *first, *last;
  };

  int64_t place(int64_t row) const { return offset_ + row * row_bytes_; }
  std::vector<Piece> pieces_of(const std::vector<Wanted>& wanted, int64_t most_bytes) const;
  void take(const Piece& piece, const std::byte* read, int64_t num_read, std::byte* out) const;
  [[noreturn]] void fail(const Wanted& wanted, int error) const;
  void read_direct(const std::vector<Piece>& pieces, int64_t most_bytes, std::byte* out) const;
  void read_buffered(const std::vector<Piece>& pieces, int64_t most_bytes, std::byte* out) const;

  std::string path_;
  int64_t offset_, row_bytes_, num_rows_;
  double timeout_s_;
  int fd_ = -1;
  int64_t block_bytes_ = 1;  // that reads begin and end at multiples of
  std::string why_buffered_;
};

}  // namespace glt
