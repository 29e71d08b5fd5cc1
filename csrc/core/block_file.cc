#include "core/block_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <new>
#include <system_error>
#include <utility>

#include "core/check.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace glt {
namespace {

// Polynomials over GF(2) modulo the CRC's, reflected: bit 31 is the coefficient of x^0.
constexpr uint32_t kPolynomial = 0xEDB88320u;
constexpr uint32_t kOne = 1u << 31;

constexpr uint32_t times_x(uint32_t a) {
  return (a >> 1) ^ (a & 1 ? kPolynomial : 0);
}

constexpr uint32_t multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (; a; a <<= 1, b = times_x(b))
    if (a & kOne) product ^= b;
  return product;
}

// x to the power n.
constexpr uint32_t power_of_x(uint64_t n) {
  uint32_t result = kOne;
  for (uint32_t square = kOne >> 1; n; n >>= 1, square = multiply(square, square))
    if (n & 1) result = multiply(result, square);
  return result;
}

// kTables[k][b]: what byte b does to the register, k bytes later. Eight bytes at a time need eight look-ups and no
// dependency between them ("slicing by 8": Kounavis and Berry, ISCC 2005).
using Tables = std::array<std::array<uint32_t, 256>, 8>;

constexpr Tables make_tables() {
  Tables tables{};
  for (uint32_t b = 0; b < 256; ++b) {
    uint32_t a = b;
    for (int bit = 0; bit < 8; ++bit) a = times_x(a);
    tables[0][b] = a;
  }
  for (int k = 1; k < 8; ++k)
    for (int b = 0; b < 256; ++b) tables[k][b] = (tables[k - 1][b] >> 8) ^ tables[0][tables[k - 1][b] & 255];
  return tables;
}

constexpr Tables kTables = make_tables();

// All functions below work on the bare register: zlib's checksum is its complement.
uint32_t by_table(const unsigned char* p, size_t n, uint32_t reg) {
  for (; n >= 8; p += 8, n -= 8) {
    uint64_t word;
    std::memcpy(&word, p, 8);  // little-endian, as the reflected register is
    word ^= reg;
    reg = 0;
    for (int k = 0; k < 8; ++k) reg ^= kTables[7 - k][(word >> (8 * k)) & 255];
  }
  for (; n; ++p, --n) reg = (reg >> 8) ^ kTables[0][(reg ^ *p) & 255];
  return reg;
}

#if defined(__x86_64__)
// Carry-less multiplication folds 64 bytes at a time (Gopal et al., "Fast CRC computation for generic polynomials using
// PCLMULQDQ", Intel 2009): what lies n bits ahead counts as much here, once multiplied by x^n. A reflected product
// comes out one bit low, hence the shift of the constants.
constexpr long long fold_constant(uint64_t n) {
  return static_cast<long long>(uint64_t{power_of_x(n)} << 1);
}

__attribute__((target("pclmul,sse2"))) inline __m128i folded(__m128i ahead, __m128i by, __m128i here) {
  return _mm_xor_si128(here,
                       _mm_xor_si128(_mm_clmulepi64_si128(ahead, by, 0x00), _mm_clmulepi64_si128(ahead, by, 0x11)));
}

__attribute__((target("pclmul,sse2"))) uint32_t by_folding(const unsigned char* p, size_t n, uint32_t reg) {
  const auto load = [](const unsigned char* q) __attribute__((target("pclmul,sse2"))) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(q));
  };
  const __m128i by_512 = _mm_set_epi64x(fold_constant(512 - 32), fold_constant(512 + 32));
  const __m128i by_128 = _mm_set_epi64x(fold_constant(128 - 32), fold_constant(128 + 32));
  __m128i a = _mm_xor_si128(load(p), _mm_cvtsi32_si128(static_cast<int>(reg)));
  __m128i b = load(p + 16), c = load(p + 32), d = load(p + 48);
  for (p += 64, n -= 64; n >= 64; p += 64, n -= 64) {
    a = folded(a, by_512, load(p));
    b = folded(b, by_512, load(p + 16));
    c = folded(c, by_512, load(p + 32));
    d = folded(d, by_512, load(p + 48));
  }
  a = folded(folded(folded(a, by_128, b), by_128, c), by_128, d);
  unsigned char rest[16];
  _mm_storeu_si128(reinterpret_cast<__m128i*>(rest), a);
  return by_table(p, n, by_table(rest, 16, 0));
}
#endif

}  // namespace

uint32_t crc32(const void* data, size_t n, uint32_t crc) {
  const auto* p = static_cast<const unsigned char*>(data);
#if defined(__x86_64__)
  static const bool can_fold = __builtin_cpu_supports("pclmul");
  if (can_fold && n >= 128) return ~by_folding(p, n, ~crc);
#endif
  return ~by_table(p, n, ~crc);
}

uint32_t crc32_of_both(uint32_t first, uint32_t second, int64_t num_bytes) {
  return multiply(power_of_x(8 * static_cast<uint64_t>(num_bytes)), first) ^ second;
}

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

// Which way long pieces are written: through the page cache or past it, whichever was faster of late.
//
// Past it is faster where memory that was not used yet is slow to come by, as in virtual machines that get theirs when
// they touch it, and where so much is dirty that writers are slowed down; and it leaves what others read in the cache.
// Through it is faster where the disk is slower than that. No rule about machines tells which: pieces are timed. Any
// number of threads; what is written does not depend on it.
class WriteRoute {
 public:
  enum Way { kCached, kDirect, kNumWays };

  Way choose() {
    const int64_t turn = turn_.fetch_add(1, std::memory_order_relaxed);
    if (turn < kTrials) return turn % 2 ? kDirect : kCached;
    const Way best = pace(kDirect) < pace(kCached) ? kDirect : kCached;
    return turn % kRetrial ? best : best == kDirect ? kCached : kDirect;
  }

  void took(Way way, int64_t num_bytes, std::chrono::duration<double> time) {
    const double now = time.count() / static_cast<double>(num_bytes), before = pace(way);
    pace_[way].store(before ? before + (now - before) / kMemory : now, std::memory_order_relaxed);
  }

  // It cannot be had here: it is tried again at times, since there are several disks.
  void refused(Way way) { pace_[way].store(1.0, std::memory_order_relaxed); }

 private:
  static constexpr int64_t kTrials = 8, kRetrial = 32;
  static constexpr double kMemory = 4;  // pieces

  double pace(Way way) const { return pace_[way].load(std::memory_order_relaxed); }

  std::atomic<int64_t> turn_{0};
  std::atomic<double> pace_[kNumWays] = {};  // seconds per byte; 0: not known
};

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
