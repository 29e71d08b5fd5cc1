"""CUDA's registrations of host memory, played by a list."""

import mmap

from glt.data.pinned import PinnedPages

PAGE = mmap.PAGESIZE


class FakeCuda:
    """Registers like CUDA: whole pages, and never a page twice.

    ``pages`` counts the registrations, ``held`` are the registered pages, ``sizes`` bytes and device by address, and
    ``synchronized`` the devices that were waited for. The address ``refuse_at``, and all calls after ``refuse_after``
    of them, are refused.
    """

    def __init__(self, chunk_pages=1000, refuse_at=None, refuse_after=None):
        self.held, self.sizes, self.synchronized = {}, {}, []
        self.refuse_at, self.left = refuse_at, refuse_after
        self.pages = PinnedPages(self.register, self.unregister, self.synchronized.append, chunk_pages * PAGE)

    def register(self, address, num_bytes, device):
        assert address % PAGE == num_bytes % PAGE == 0 and num_bytes > 0
        if address == self.refuse_at or self.left == 0:
            raise RuntimeError("cudaHostRegister of 4096 bytes: cudaErrorMemoryAllocation, out of memory")
        self.left = None if self.left is None else self.left - 1
        for page in range(address, address + num_bytes, PAGE):
            assert page not in self.held, "registered twice"
            self.held[page] = address
        self.sizes[address] = (num_bytes, device)

    def unregister(self, address, device):
        num_bytes, registered_by = self.sizes.pop(address)
        assert device == registered_by
        for page in range(address, address + num_bytes, PAGE):
            del self.held[page]

    @property
    def registered(self):
        """Bytes by address."""
        return {address: num_bytes for address, (num_bytes, _) in self.sizes.items()}

    def covers(self, tensor):
        begin, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
        return all(page in self.held for page in range(begin // PAGE * PAGE, end, PAGE))
