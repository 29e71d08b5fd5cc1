#include "core/block_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <new>
#include <system_error>
#include <utility>

#include "core/check.h"
#include "core/crc32.h"
#include "core/write_route.h"

namespace glt {
namespace {

constexpr int64_t kMaxCall = int64_t{1} << 30;      // Linux moves at most 2 GiB at a time
constexpr int64_t kPage = 4096;                     // past the page cache go whole pages, from memory that begins one
constexpr int64_t kBounce = int64_t{1} << 20;       // bytes at a time
constexpr int64_t kLongPiece = int64_t{256} << 10;  // shorter ones are not worth a second way

[[noreturn]] void fail(const std::string& path) {
  throw std::system_error(errno, std::generic_category(), path);
}

int open_at(const std::string& path, int flags) {
  return open(path.c_str(), flags | O_CLOEXEC, 0666);
}

class Descriptor {
 public:
  Descriptor(const std::string& path, int fd) : path_(path), fd_(fd) {
    if (fd_ < 0) fail(path);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  void close() {  // network file systems report a full disk here
    const int fd = std::exchange(fd_, -1);
    if (::close(fd) != 0) fail(path_);
  }

 private:
  const std::string& path_;
  int fd_;
};

struct PageBuffer {
  PageBuffer() : bytes(static_cast<char*>(std::aligned_alloc(kPage, kBounce)), &std::free) {
    if (!bytes) throw std::bad_alloc();
  }
  std::unique_ptr<char, decltype(&std::free)> bytes;
};

// Writes whole pages past the page cache; returns the bytes written, less than asked where that cannot be had.
int64_t write_pages(const std::string& path, int64_t offset, const char* data, int64_t num_bytes) {
  const int fd = open_at(path, O_WRONLY | O_DIRECT);
  if (fd < 0) {
    if (errno != EINVAL) fail(path);
    return 0;
  }
  Descriptor file(path, fd);
  static thread_local const PageBuffer page_buffer;
  int64_t at = 0;
  while (at < num_bytes) {
    const int64_t n = std::min(kBounce, num_bytes - at);
    std::memcpy(page_buffer.bytes.get(), data + at, n);
    const ssize_t done = pwrite(file.get(), page_buffer.bytes.get(), n, offset + at);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0 && errno != EINVAL) fail(path);
    if (done < n) {  // pages of this disk are longer than ours, or it is almost full: the other way will tell
      at += std::max<int64_t>(done, 0) / kPage * kPage;
      break;
    }
    at += n;
  }
  file.close();
  return at;
}

WriteRoute route;  // of the process: what it has learnt about the machine

}  // namespace

void write_at(int fd, int64_t offset, const void* data, int64_t num_bytes, const std::string& path) {
  const char* p = static_cast<const char*>(data);
  while (num_bytes > 0) {
    const ssize_t done = pwrite(fd, p, std::min(num_bytes, kMaxCall), offset);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail(path);
    p += done, offset += done, num_bytes -= done;
  }
}

void read_at(int fd, int64_t offset, void* data, int64_t num_bytes, const std::string& path) {
  char* p = static_cast<char*>(data);
  while (num_bytes > 0) {
    const ssize_t done = pread(fd, p, std::min(num_bytes, kMaxCall), offset);
    if (done < 0 && errno == EINTR) continue;
    if (done == 0) errno = EIO;  // shorter than what was written to it
    if (done <= 0) fail(path);
    p += done, offset += done, num_bytes -= done;
  }
}

void forget_at(int fd, int64_t offset, int64_t num_bytes) {
  (void)fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, num_bytes);  // advice
}

BlockFile::BlockFile(std::string path, int64_t num_bytes, int64_t block_bytes)
    : path_(std::move(path)), num_bytes_(num_bytes), block_bytes_(block_bytes) {
  require(num_bytes >= 0 && block_bytes >= 1, "BlockFile: ", num_bytes, " bytes in blocks of ", block_bytes,
          ": expected at least 0 and 1");
  crcs_.resize((num_bytes + block_bytes - 1) / block_bytes);
  Descriptor file(path_, open_at(path_, O_WRONLY | O_CREAT | O_EXCL));
  // Room taken at once is a full disk found at once, and writes that take half the kernel's time. Not all file systems
  // can; those that cannot take it as they are written.
  if (num_bytes > 0 && fallocate(file.get(), 0, 0, num_bytes) != 0)
    if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) fail(path_);
  file.close();
}

void BlockFile::write(int64_t offset, const void* data, int64_t num_bytes) {
  require(offset >= 0 && num_bytes >= 0 && offset + num_bytes <= num_bytes_, path_, ": bytes ", offset, " to ",
          offset + num_bytes, " are outside its ", num_bytes_);
  if (num_bytes == 0) return;
  const char* p = static_cast<const char*>(data);
  for (int64_t begin = offset; begin < offset + num_bytes;) {  // first, while the data is in the cache
    const int64_t end = std::min(offset + num_bytes, (begin / block_bytes_ + 1) * block_bytes_);
    add(begin, end, crc32(p + (begin - offset), end - begin));
    begin = end;
  }
  if (num_bytes < kLongPiece) return write_cached(offset, p, num_bytes);
  const WriteRoute::Way way = route.choose();
  const auto start = std::chrono::steady_clock::now();
  if (way == WriteRoute::kCached)
    write_cached(offset, p, num_bytes);
  else if (!write_direct(offset, p, num_bytes))
    return route.refused(way);
  route.took(way, num_bytes, std::chrono::steady_clock::now() - start);
}

void BlockFile::write_cached(int64_t offset, const char* data, int64_t num_bytes) const {
  if (num_bytes == 0) return;
  Descriptor file(path_, open_at(path_, O_WRONLY));
  write_at(file.get(), offset, data, num_bytes, path_);
  file.close();
}

bool BlockFile::write_direct(int64_t offset, const char* data, int64_t num_bytes) const {
  // Whole pages go past the cache; no other piece has bytes of those. What is left at both ends goes through it.
  const int64_t head = (kPage - offset % kPage) % kPage, body = (num_bytes - head) / kPage * kPage;
  const int64_t done = write_pages(path_, offset + head, data + head, body);
  write_cached(offset, data, head);
  write_cached(offset + head + done, data + head + done, num_bytes - head - done);
  return done == body;
}

void BlockFile::add(int64_t begin, int64_t end, uint32_t crc) {
  const std::lock_guard lock(mutex_);
  const int64_t block = begin / block_bytes_;
  const int64_t block_begin = block * block_bytes_, block_end = std::min(num_bytes_, block_begin + block_bytes_);
  const auto next = pieces_.lower_bound(begin);
  if (next != pieces_.end() && next->first == end && end < block_end) {
    crc = crc32_of_both(crc, next->second.crc, next->second.end - end);
    end = next->second.end;
    pieces_.erase(next);
  }
  const auto after = pieces_.lower_bound(begin);
  if (begin > block_begin && after != pieces_.begin()) {
    const auto before = std::prev(after);
    if (before->second.end == begin) {
      crc = crc32_of_both(before->second.crc, crc, end - begin);
      begin = before->first;
      pieces_.erase(before);
    }
  }
  if (begin == block_begin && end == block_end) {
    crcs_[block] = crc;
    ++num_whole_;
  } else {
    pieces_[begin] = {end, crc};
  }
}

std::vector<uint32_t> BlockFile::checksum() const {
  const std::lock_guard lock(mutex_);
  require(num_whole_ == static_cast<int64_t>(crcs_.size()), path_, ": only ", num_whole_, " of ", crcs_.size(),
          " blocks were written whole");
  return crcs_;
}

}  // namespace glt
