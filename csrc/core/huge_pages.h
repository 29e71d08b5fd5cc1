// Memory and files in pages of 2 MiB: rows read in no order then miss the TLB far less often than with 4 KiB.

#pragma once

#include <cstddef>
#include <cstdint>

namespace glt {

constexpr size_t kHugePage = size_t{2} << 20;

// Has the kernel copy memory that has been written to 2 MiB pages, about 2 GB a second. Returns how many bytes have
// them now. Leaves out what was never written. Ends at what is a file's or shared with another process, one that this
// was forked from for example (the copy would be a second one); where the kernel finds no more huge pages; and in time.
int64_t collapse_to_huge_pages(void* data, int64_t bytes, double seconds);

// Reads up to so many bytes of a file into 2 MiB pages of the page cache, which all processes of the host that map the
// file share. What is there in small pages, as after writing, is read from the disk again, but for pages that a process
// uses. `begin` is a multiple of 2 MiB. Returns whether all but a rest is in huge pages now: it is not on file systems
// without large folios, and where the kernel cannot tell (before Linux 6.7). Errors of the disk are left to those who
// read the bytes.
bool read_into_huge_pages(int fd, int64_t begin, int64_t bytes);

}  // namespace glt
