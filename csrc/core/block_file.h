// A file of known size that several threads fill in any order, with a checksum for each block of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace glt {

// CRC-32 as zlib computes it (polynomial 0x04C11DB7, reflected), at the speed of memory, and of parts put together.
//
// The checksum of what `crc` is the checksum of (0: nothing), followed by data[0, n).
uint32_t crc32(const void* data, size_t n, uint32_t crc = 0);

// The checksum of two ranges, one after the other, from those of each; the second has num_bytes.
uint32_t crc32_of_both(uint32_t first, uint32_t second, int64_t num_bytes);

// Throws std::system_error, naming `path`, if it fails; pwrite and pread to the last byte.
void write_at(int fd, int64_t offset, const void* data, int64_t num_bytes, const std::string& path);
void read_at(int fd, int64_t offset, void* data, int64_t num_bytes, const std::string& path);

// Gives back the room of a range that is not needed any more, where the file system can: what was not written to disk
// yet never has to be. The range reads as zeros then, or as before.
void forget_at(int fd, int64_t offset, int64_t num_bytes);

// The file is opened for each piece: a partitioner may have thousands of files under way.
class BlockFile {
 public:
  // Creates the file, which must not exist.
  BlockFile(std::string path, int64_t num_bytes, int64_t block_bytes);

  // Writes a piece. Pieces may come in any order and from several threads, but each byte once.
  void write(int64_t offset, const void* data, int64_t num_bytes);

  // The CRC-32 of each block. Throws std::invalid_argument unless all bytes were written.
  std::vector<uint32_t> checksum() const;

  const std::string& path() const { return path_; }
  int64_t num_bytes() const { return num_bytes_; }

 private:
  struct Piece {
    int64_t end;
    uint32_t crc;
  };
  void write_cached(int64_t offset, const char* data, int64_t num_bytes) const;
  // Returns whether it went past the page cache; it is written in any case.
  bool write_direct(int64_t offset, const char* data, int64_t num_bytes) const;
  void add(int64_t begin, int64_t end, uint32_t crc);

  std::string path_;
  int64_t num_bytes_, block_bytes_;
  mutable std::mutex mutex_;
  std::map<int64_t, Piece> pieces_;  // by first byte: of blocks that are not whole yet, neighbours joined
  std::vector<uint32_t> crcs_;
  int64_t num_whole_ = 0;
};

// Rows of one length in a file, behind a header.
struct RowFile {
  BlockFile* file;
  int64_t header_bytes;
};

}  // namespace glt
