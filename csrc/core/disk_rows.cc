#include "core/disk_rows.h"

#include <fcntl.h>
#include <linux/aio_abi.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <system_error>
#include <utility>

#include "core/check.h"

namespace glt {
namespace {

constexpr int64_t kDepth = 128;            // reads at a time: more won nothing on NVMe and virtual disks
constexpr int64_t kPieceBytes = 64 << 10;  // of a read at most, where a row is not longer
constexpr int64_t kGapBytes = 4096;        // what is cheaper to read than to begin another read for
constexpr int64_t kMostBlockBytes = 4096;  // of disks

// What one thread reads with: a queue of the kernel, and memory.
class Reader {
 public:
  explicit Reader(int64_t num_bytes) : num_bytes_(num_bytes) {
    void* p = mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    memory_ = static_cast<std::byte*>(p);
    (void)madvise(p, num_bytes, MADV_DONTFORK);  // of a fork it is not: the disk may be writing to it
    if (syscall(SYS_io_setup, kDepth, &context_) != 0) {
      const int error = errno;
      munmap(p, num_bytes);
      throw std::system_error(
          error, std::generic_category(),
          error == EAGAIN ? "too many reads at a time on this host: raise sysctl fs.aio-max-nr" : "io_setup");
    }
  }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
  ~Reader() {
    syscall(SYS_io_destroy, context_);  // waits for what is under way
    munmap(memory_, num_bytes_);
  }

  std::byte* memory() const { return memory_; }
  int64_t num_bytes() const { return num_bytes_; }

  long submit(iocb** blocks, long n) const { return syscall(SYS_io_submit, context_, n, blocks); }

  // Waits for at least one of those under way, for several if they come soon; returns how many have come.
  long wait(long least, io_event* events, long most, double timeout_s) const {
    timespec timeout{static_cast<time_t>(timeout_s), static_cast<long>(std::fmod(timeout_s, 1.0) * 1e9)};
    return syscall(SYS_io_getevents, context_, least, most, events, &timeout);
  }

 private:
  int64_t num_bytes_;
  std::byte* memory_;
  aio_context_t context_ = 0;
};

// Readers that no thread uses: to make one takes a tenth of a millisecond, to end one 30.
class Readers {
 public:
  std::unique_ptr<Reader> take(int64_t num_bytes) {
    {
      const std::lock_guard lock(mutex_);
      const auto found = std::find_if(idle_.begin(), idle_.end(), [&](auto& r) { return r->num_bytes() >= num_bytes; });
      if (found != idle_.end()) {
        std::unique_ptr<Reader> reader = std::move(*found);
        idle_.erase(found);
        return reader;
      }
    }
    return std::make_unique<Reader>(num_bytes);
  }

  void give(std::unique_ptr<Reader> reader) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(reader));
  }

  std::mutex mutex_;
  std::vector<std::unique_ptr<Reader>> idle_;
};

// Never deleted: threads may read until the process ends. A fork has neither the queues nor the memory.
Readers* process_readers = new Readers;
const int fork_handlers =
    pthread_atfork([] { process_readers->mutex_.lock(); }, [] { process_readers->mutex_.unlock(); },
                   [] { process_readers = new Readers; });

// Whether a block of the file can be read past the page cache, at a multiple of so many bytes.
bool can_read(int fd, int64_t block_bytes, std::byte* memory) {
  return pread(fd, memory + block_bytes, block_bytes, 0) >= 0;
}

}  // namespace

DiskRows::DiskRows(std::string path, int64_t offset, int64_t row_bytes, int64_t num_rows, double timeout_s)
    : path_(std::move(path)), offset_(offset), row_bytes_(row_bytes), num_rows_(num_rows), timeout_s_(timeout_s) {
  require(fork_handlers == 0, "pthread_atfork: error ", fork_handlers, " when glt was loaded; out of memory?");
  require(offset >= 0 && row_bytes >= 0 && num_rows >= 0, "offset = ", offset, ", row_bytes = ", row_bytes,
          ", num_rows = ", num_rows, ": expected none below 0");
  fd_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
  if (fd_ >= 0) {
    try {
      std::unique_ptr<Reader> reader = process_readers->take(kDepth * kPieceBytes);
      for (const int64_t block_bytes : {int64_t{512}, kMostBlockBytes})
        if (block_bytes_ == 1 && can_read(fd_, block_bytes, reader->memory())) block_bytes_ = block_bytes;
      process_readers->give(std::move(reader));
      if (block_bytes_ > 1) return;
      why_buffered_ = "its file system reads nothing past the page cache";
    } catch (const std::system_error& error) {
      if (error.code().value() == EAGAIN) {
        close(fd_);
        throw;
      }
      why_buffered_ = text("this process may not read several blocks at a time: ", error.what());
    } catch (...) {
      close(fd_);
      throw;
    }
    close(fd_);
  } else if (errno == EINVAL) {
    why_buffered_ = "its file system reads nothing past the page cache";
  } else {
    throw std::system_error(errno, std::generic_category(), path_);
  }
  fd_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd_ < 0) throw std::system_error(errno, std::generic_category(), path_);
  (void)posix_fadvise(fd_, 0, 0, POSIX_FADV_RANDOM);  // else a row brings megabytes that are not wanted
}

DiskRows::~DiskRows() {
  close(fd_);
}

std::vector<DiskRows::Piece> DiskRows::pieces_of(const std::vector<Wanted>& wanted, int64_t most_bytes) const {
  std::vector<Piece> pieces;
  for (const Wanted& each : wanted) {
    const int64_t begin = place(each.row) / block_bytes_ * block_bytes_;
    const int64_t end = (place(each.row + 1) + block_bytes_ - 1) / block_bytes_ * block_bytes_;
    if (!pieces.empty() && begin <= pieces.back().end + kGapBytes && end - pieces.back().begin <= most_bytes) {
      pieces.back().end = std::max(pieces.back().end, end);
      pieces.back().last = &each + 1;
    } else {
      pieces.push_back({begin, end, &each, &each + 1});
    }
  }
  return pieces;
}

void DiskRows::fail(const Wanted& wanted, int error) const {
  const int64_t begin = place(wanted.row);
  const char* why = error == 0           ? " are beyond its end: it is shorter than it was"
                    : error == ETIMEDOUT ? " did not come in time: the disk, or the network to it, does not answer"
                                         : " cannot be read";
  throw std::system_error(error == 0 ? EIO : error, std::generic_category(),
                          text(path_, ": row ", wanted.row, ", bytes ", begin, " to ", begin + row_bytes_ - 1, why));
}

void DiskRows::take(const Piece& piece, const std::byte* read, int64_t num_read, std::byte* out) const {
  for (const Wanted* each = piece.first; each < piece.last; ++each) {
    const int64_t at = place(each->row) - piece.begin;
    if (at + row_bytes_ > num_read) fail(*each, 0);
    std::memcpy(out + each->to * row_bytes_, read + at, row_bytes_);
  }
}

void DiskRows::read_direct(const std::vector<Piece>& pieces, int64_t most_bytes, std::byte* out) const {
  const int64_t depth = std::clamp<int64_t>(kDepth * kPieceBytes / most_bytes, 1, kDepth);
  const int64_t num_pieces = static_cast<int64_t>(pieces.size());
  std::unique_ptr<Reader> reader = process_readers->take(std::max(kDepth * kPieceBytes, depth * most_bytes));
  std::vector<iocb> blocks(depth);
  std::vector<iocb*> waiting;  // to be submitted
  std::vector<io_event> events(depth);
  std::vector<const Piece*> under_way(depth, nullptr);
  std::vector<int64_t> idle;
  for (int64_t slot = depth; slot-- > 0;) idle.push_back(slot);
  int64_t next = 0, num_under_way = 0;
  std::exception_ptr failed;  // thrown once nothing is written to the memory any more
  const auto end = [&](int64_t slot, int64_t result) {
    const Piece& piece = *std::exchange(under_way[slot], nullptr);
    idle.push_back(slot);
    if (failed) return;
    try {
      if (result < 0) fail(*piece.first, static_cast<int>(-result));
      take(piece, reader->memory() + slot * most_bytes, result, out);
    } catch (...) {
      failed = std::current_exception();
    }
  };
  while (num_under_way > 0 || (!failed && (next < num_pieces || !waiting.empty()))) {
    while (!failed && next < num_pieces && !idle.empty()) {
      const int64_t slot = idle.back();
      idle.pop_back();
      const Piece& piece = pieces[next++];
      under_way[slot] = &piece;
      iocb& block = blocks[slot] = iocb{};
      block.aio_data = slot;
      block.aio_lio_opcode = IOCB_CMD_PREAD;
      block.aio_fildes = fd_;
      block.aio_buf = reinterpret_cast<uint64_t>(reader->memory() + slot * most_bytes);
      block.aio_nbytes = piece.end - piece.begin;
      block.aio_offset = piece.begin;
      waiting.push_back(&block);
    }
    while (!failed && !waiting.empty()) {
      const long taken = reader->submit(waiting.data(), static_cast<long>(waiting.size()));
      if (taken < 0 && errno == EINTR) continue;
      if (taken < 0 && errno == EAGAIN && num_under_way > 0) break;  // as soon as some have come
      if (taken < 0) {
        // One that the kernel takes none of: read at once, which also says what is wrong with it.
        iocb* block = waiting.front();
        waiting.erase(waiting.begin());
        const ssize_t got = pread(fd_, reinterpret_cast<void*>(block->aio_buf), block->aio_nbytes, block->aio_offset);
        end(static_cast<int64_t>(block->aio_data), got < 0 ? -errno : got);
        continue;
      }
      num_under_way += taken;
      waiting.erase(waiting.begin(), waiting.begin() + taken);
    }
    if (num_under_way == 0) continue;
    // Several, where many are under way: each call costs as much as a read.
    const long got = reader->wait(std::max<long>(1, num_under_way / 8), events.data(), depth, timeout_s_);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      const int error = got < 0 ? errno : ETIMEDOUT;
      (void)reader.release();  // the disk may yet write to its memory
      const auto first = std::find_if(under_way.begin(), under_way.end(), [](const Piece* p) { return p != nullptr; });
      fail(*(*first)->first, error);
    }
    num_under_way -= got;
    for (long i = 0; i < got; ++i) end(static_cast<int64_t>(events[i].data), events[i].res);
  }
  process_readers->give(std::move(reader));
  if (failed) std::rethrow_exception(failed);
}

void DiskRows::read_buffered(const std::vector<Piece>& pieces, int64_t most_bytes, std::byte* out) const {
  const std::unique_ptr<std::byte[]> memory(new std::byte[most_bytes]);
  const int64_t num_pieces = static_cast<int64_t>(pieces.size());
  for (int64_t first = 0; first < num_pieces; first += kDepth) {
    const int64_t last = std::min(first + kDepth, num_pieces);
    for (int64_t i = first; i < last; ++i)
      (void)posix_fadvise(fd_, pieces[i].begin, pieces[i].end - pieces[i].begin, POSIX_FADV_WILLNEED);
    for (int64_t i = first; i < last; ++i) {
      const Piece& piece = pieces[i];
      int64_t done = 0;
      while (piece.begin + done < piece.end) {
        const ssize_t got = pread(fd_, memory.get() + done, piece.end - piece.begin - done, piece.begin + done);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) fail(*piece.first, errno);
        if (got == 0) break;
        done += got;
      }
      take(piece, memory.get(), done, out);
    }
  }
}

DiskRows::Reads DiskRows::read(const int64_t* rows, int64_t n, std::byte* out) const {
  if (n == 0 || row_bytes_ == 0) return {};
  std::vector<Wanted> wanted(n);
  for (int64_t i = 0; i < n; ++i) {
    require_index(static_cast<uint64_t>(rows[i]) < static_cast<uint64_t>(num_rows_), "rows[", i, "] = ", rows[i],
                  " is outside [0, ", num_rows_, ")");
    wanted[i] = {rows[i], i};
  }
  std::sort(wanted.begin(), wanted.end(), [](const Wanted& a, const Wanted& b) { return a.row < b.row; });
  const int64_t row_blocks = (row_bytes_ + 2 * kMostBlockBytes - 1) / kMostBlockBytes * kMostBlockBytes;
  const int64_t most_bytes = std::max(kPieceBytes, row_blocks);  // a row may begin and end inside a block
  const std::vector<Piece> pieces = pieces_of(wanted, most_bytes);
  if (why_buffered_.empty())
    read_direct(pieces, most_bytes, out);
  else
    read_buffered(pieces, most_bytes, out);
  Reads done{static_cast<int64_t>(pieces.size())};
  for (const Piece& piece : pieces) done.num_bytes += piece.end - piece.begin;
  return done;
}

}  // namespace glt
