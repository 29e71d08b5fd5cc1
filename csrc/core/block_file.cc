#include "core/block_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <system_error>
#include <utility>

#include "core/check.h"
#include "core/crc32.h"

namespace glt {
namespace {

constexpr int64_t kMaxCall = int64_t{1} << 30;  // Linux moves at most 2 GiB at a time

[[noreturn]] void fail(const std::string& path) {
  throw std::system_error(errno, std::generic_category(), path);
}

class Descriptor {
 public:
  Descriptor(const std::string& path, int flags) : path_(path), fd_(open(path.c_str(), flags | O_CLOEXEC, 0666)) {
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
  Descriptor file(path_, O_WRONLY | O_CREAT | O_EXCL);
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
  Descriptor file(path_, O_WRONLY);
  write_at(file.get(), offset, data, num_bytes, path_);
  file.close();
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
