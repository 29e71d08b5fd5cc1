"""What the native core offers, in the order of csrc/python/module.cc."""

import enum
from collections.abc import Callable, Sequence

import numpy as np

# What a partition answered: positions and counts (uint32), neighbours and edges (int32 or int64).
RowsPart = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]

has_cuda: bool  # built with CUDA kernels; says nothing of a GPU
cuda_version: int  # of the toolkit that compiled them: 13000 is 13.0; 0 without kernels

# rng.cc
def batch_key(rng_seed: int, epoch: int, batch: int) -> int: ...
def shared_key(rng_seed: int, epoch: int, window: int) -> int: ...
def number_key(shared_key: int, hop: int, node_type: int) -> int: ...
def rank_seed(job_seed: int, rank: int) -> int: ...
def shuffle(items: np.ndarray, rng_seed: int, epoch: int) -> None: ...

# csr.cc

class Book:
    """The owner of each id, from an array or from ranges of ids; see csrc/core/csr.h."""

    num_ids: int
    num_parts: int
    def __init__(self, owner: np.ndarray, num_parts: int) -> None: ...
    @staticmethod
    def of_ranges(offset: np.ndarray) -> Book: ...

def group_by_owner(book: Book, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]: ...
def find_owners(book: Book, ids: np.ndarray) -> np.ndarray: ...
def require_owned(book: Book, ids: np.ndarray, part: int) -> None: ...

class Csr:
    num_rows: int
    num_nodes: int
    num_edges: int
    def __init__(
        self,
        indptr: np.ndarray,
        indices: np.ndarray,
        edge_ids: np.ndarray | None = None,
        row_of: np.ndarray | None = None,
        num_nodes: int | None = None,
        num_neighbor_nodes: int | None = None,
        check_indices: bool = True,
        book: Book | None = None,
        part: int = 0,
        weight_sum: np.ndarray | None = None,
        weight_guide: np.ndarray | None = None,
        time: np.ndarray | None = None,
        first_edge_id: int = 0,
    ) -> None: ...

def build_csr(
    rows: np.ndarray,
    cols: np.ndarray,
    num_nodes: int,
    num_neighbor_nodes: int,
    indptr: np.ndarray,
    indices: np.ndarray,
    edge_ids: np.ndarray | None = None,
    edge_ids_in: np.ndarray | None = None,
    row_of: np.ndarray | None = None,
    largest_edge_id: int = ...,
    row_name: str = "rows",
    col_name: str = "cols",
) -> bool: ...
def sort_rows_by_time(indptr: np.ndarray, time: np.ndarray, order: np.ndarray) -> None: ...
def weight_guide_size(num_rows: int, num_edges: int) -> int: ...
def build_weights(
    indptr: np.ndarray, weight: np.ndarray, weight_sum: np.ndarray, weight_guide: np.ndarray, name: str = "weight"
) -> None: ...
def has_edges(csr: Csr, centers: np.ndarray, neighbors: np.ndarray, out: np.ndarray) -> None: ...

# fennel.cc
def fennel_pass(
    indptr: np.ndarray,
    indices: np.ndarray,
    num_parts: int,
    label: np.ndarray | None,
    label_cap: np.ndarray,
    edges: Sequence[np.ndarray],
    edge_cap: np.ndarray,
    penalty: float,
    is_first: bool,
    rng_seed: int,
    owner: np.ndarray,
) -> int: ...
def move_overfull(
    indptr: np.ndarray,
    indices: np.ndarray,
    num_parts: int,
    label: np.ndarray | None,
    label_cap: np.ndarray,
    edges: Sequence[np.ndarray],
    edge_cap: np.ndarray,
    node_cap: int,
    penalty: float,
    rng_seed: int,
    owner: np.ndarray,
) -> int: ...
def sort_rows(indptr: np.ndarray, indices: np.ndarray, merged_indptr: np.ndarray) -> None: ...
def merge_rows(
    indptr: np.ndarray, indices: np.ndarray, merged_indptr: np.ndarray, neighbor: np.ndarray, weight: np.ndarray
) -> None: ...

# batch.cc

class Exclusions:
    """Edges that a batch must not take, as pairs of ids; see csrc/core/rows.h."""

    def __init__(self, center: np.ndarray, neighbor: np.ndarray) -> None: ...

class Batch:
    """One batch under construction, by one thread at a time; see csrc/core/batch.h. Types are indices."""

    def __init__(self, num_nodes: Sequence[int], ends: Sequence[tuple[int, int]], dense_limit: int = ...) -> None: ...
    def start(
        self,
        seeds: Sequence[tuple[int, np.ndarray]],
        with_edge: bool = True,
        disjoint: bool = False,
        seed_time: np.ndarray | None = None,
    ) -> None: ...
    def sample(
        self,
        csrs: Sequence[Csr | Sequence[Csr] | None],
        num_neighbors: Sequence[Sequence[int]],
        *,
        replace: bool,
        batch_key: int,
        last: bool = False,
        exclusions: Sequence[Exclusions | None] | None = None,
        time_window: Sequence[int] = (),
        half_life: Sequence[int] = (),
        shared_key: int | None = None,
        num_threads: int = 1,
    ) -> None: ...
    def expand_from(self, edge_type: int, parts: Sequence[RowsPart]) -> None: ...
    def end_hop(self) -> None: ...
    def induce(self, csrs: Sequence[Csr | Sequence[Csr] | None], num_threads: int = 1) -> None: ...
    def begin_induce(self) -> None: ...
    def induce_from(self, edge_type: int, parts: Sequence[RowsPart]) -> None: ...
    def frontier(self, node_type: int) -> np.ndarray: ...  # int64
    def frontier_trees(self, node_type: int) -> np.ndarray: ...  # uint32
    def nodes(self, node_type: int) -> np.ndarray: ...  # int64
    def trees(self, node_type: int) -> np.ndarray: ...  # uint32
    def edges(self, edge_type: int) -> np.ndarray: ...  # int64
    def num_nodes(self, node_type: int) -> int: ...
    def num_edges(self, edge_type: int) -> int: ...
    def num_sampled_nodes(self, node_type: int) -> list[int]: ...
    def num_sampled_edges(self, edge_type: int) -> list[int]: ...
    def hand_over(
        self, expanded_first: bool = False
    ) -> tuple[list[tuple[np.ndarray, np.ndarray | None]], list[tuple[np.ndarray, np.ndarray | None]]]: ...
    def copy_nodes(self, node_type: int, node: np.ndarray, tree: np.ndarray | None = None) -> None: ...
    def copy_edges(self, edge_type: int, row: np.ndarray, col: np.ndarray, edge: np.ndarray | None = None) -> None: ...

# one_hop.cc

class OneHop:
    """The samples of one hop, as a partition answers them; see csrc/core/sample.h."""

    def __init__(
        self,
        csr: Csr,
        nodes: np.ndarray,
        num_neighbors: int,
        replace: bool,
        batch_key: int,
        hop: int,
        edge_type: int = 0,
        with_edge: bool = True,
        num_threads: int = 1,
        name: str = "nodes",
        tree: np.ndarray | None = None,
        seed_time: np.ndarray | None = None,
        last: bool = False,
        exclusions: Exclusions | None = None,
        time_window: int = -1,
        half_life: int = 0,
        number_key: int | None = None,
        with_time: bool = False,
    ) -> None: ...
    @property
    def num_edges(self) -> int: ...
    def copy_out(self, count: np.ndarray, neighbor: np.ndarray, edge: np.ndarray | None = None) -> None: ...

class InducedRows:
    """The edges from members to the nodes of one request, as a partition answers them; see csrc/core/read_rows.h."""

    def __init__(
        self,
        csr: Csr,
        nodes: np.ndarray,
        members: np.ndarray,
        with_edge: bool = True,
        num_threads: int = 1,
        tree: np.ndarray | None = None,
        member_tree: np.ndarray | None = None,
    ) -> None: ...
    @property
    def num_edges(self) -> int: ...
    def copy_out(self, count: np.ndarray, neighbor: np.ndarray, edge: np.ndarray | None = None) -> None: ...

# device_batch.cc

class DeviceRows:
    """A graph by the addresses of its arrays, in memory that kernels read; see csrc/cuda/device_rows.h."""

    def __init__(
        self,
        *,
        indptr: int,
        indices: int,
        wide_indices: bool,
        edge_ids: int = 0,
        wide_edge_ids: bool = False,
        weight_sum: int = 0,
        weight_guide: int = 0,
        time: int = 0,
        num_nodes: int,
        num_neighbor_nodes: int,
        num_edges: int,
        first_edge_id: int = 0,
        hot_shift: int = 0,
        hot_indices: int = 0,
        hot_edge_ids: int = 0,
    ) -> None: ...

class DeviceBatch:
    """One batch sampled by kernels, on device >= 0 or, -1, on the host, by one thread at a time; see
    csrc/cuda/device_batch.h."""

    def __init__(
        self,
        num_nodes: Sequence[int],
        ends: Sequence[tuple[int, int]],
        dense_limit: int = ...,
        first_room: int = ...,
        *,
        device: int,
        order: str = "forward",
        shuffle_seed: int = 0,
        num_threads: int = 1,
        replays: bool = True,
    ) -> None: ...
    @property
    def num_replays(self) -> int: ...
    def prepare(
        self,
        graphs: Sequence[DeviceRows | None],
        seeds: Sequence[tuple[int, int, int, int]],
        num_neighbors: Sequence[Sequence[int]],
        *,
        replace: bool = False,
        batch_key: int,
        last: bool = False,
        with_edge: bool = True,
        disjoint: bool = False,
        seed_time: int = 0,
        num_times: int = 0,
        exclusions: Sequence[Exclusions | None] = (),
        first_hop: int = 0,
        time_window: Sequence[int] = (),
        half_life: Sequence[int] = (),
        shared_key: int | None = None,
    ) -> tuple[int, list[int]]: ...
    def launch(self, workspace: int, tables: Sequence[int], stream: int = 0) -> None: ...
    def wait(self) -> bool: ...
    def induced_bytes(self) -> int: ...
    def induce(self, workspace: int) -> None: ...
    def num_nodes(self, node_type: int) -> int: ...
    def num_edges(self, edge_type: int) -> int: ...
    def num_sampled_nodes(self, node_type: int) -> list[int]: ...
    def num_sampled_edges(self, edge_type: int) -> list[int]: ...
    def copy_out(self, nodes: Sequence[tuple[int, int]], edges: Sequence[tuple[int, int, int]]) -> None: ...

# walk.cc
most_walk_steps: int

class WalkSpec:
    """What random walks are; see csrc/core/walk.h."""

    def __init__(
        self,
        length: int,
        *,
        path: Sequence[int],
        batch_key: int,
        restart: float = 0.0,
        back: float = 1.0,
        far: float = 1.0,
        earlier: bool = False,
    ) -> None: ...

class Walks:
    """Random walks under way, which ask for rows and edges; see csrc/core/walk.h."""

    def __init__(
        self, seeds: np.ndarray, out: np.ndarray, spec: WalkSpec, seed_time: np.ndarray | None = None
    ) -> None: ...
    @property
    def is_done(self) -> bool: ...
    @property
    def edge_type(self) -> int: ...
    @property
    def hop(self) -> int: ...
    @property
    def num_draws(self) -> int: ...
    def rows(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]: ...
    def take(self, count: np.ndarray, neighbor: np.ndarray, time: np.ndarray | None = None) -> None: ...
    def checks(self) -> tuple[np.ndarray, np.ndarray]: ...
    def judge(self, found: np.ndarray) -> None: ...

class PageRanks:
    """Page ranks under way, which ask for degrees and rows; see csrc/core/page_rank_steps.h."""

    def __init__(
        self,
        ends: Sequence[tuple[int, int]],
        num_types: int,
        seed_type: int,
        wanted_type: int,
        seeds: np.ndarray,
        count: np.ndarray,
        neighbor: np.ndarray,
        score: np.ndarray,
        *,
        num_neighbors: int,
        stop: float,
        residual_per_edge: float,
    ) -> None: ...
    @property
    def is_done(self) -> bool: ...
    @property
    def wants_rows(self) -> bool: ...
    def asked(self, node_type: int) -> np.ndarray: ...
    def take(self, edge_type: int, position: np.ndarray, count: np.ndarray, neighbor: np.ndarray) -> None: ...
    def go_on(self) -> None: ...

def walk(
    csrs: Sequence[Csr | Sequence[Csr] | None],
    seeds: np.ndarray,
    out: np.ndarray,
    spec: WalkSpec,
    seed_time: np.ndarray | None = None,
    num_threads: int = 1,
) -> None: ...
def page_ranks(
    csrs: Sequence[Csr | Sequence[Csr] | None],
    ends: Sequence[tuple[int, int]],
    num_types: int,
    seed_type: int,
    wanted_type: int,
    seeds: np.ndarray,
    count: np.ndarray,
    neighbor: np.ndarray,
    score: np.ndarray,
    *,
    num_neighbors: int,
    stop: float,
    residual_per_edge: float,
    num_threads: int = 1,
) -> None: ...

# node_sets.cc

class HgtNodes:
    """The nodes of a batch by HGT's budgets, under way; see csrc/core/hgt.h."""

    def __init__(
        self,
        num_nodes: Sequence[int],
        ends: Sequence[tuple[int, int]],
        seeds: Sequence[np.ndarray],
        num_samples: Sequence[Sequence[int]],
        batch_key: int,
    ) -> None: ...
    @property
    def is_done(self) -> bool: ...
    @property
    def iteration(self) -> int: ...
    def newest(self, node_type: int) -> np.ndarray: ...  # int64
    def take(self, edge_type: int, count: np.ndarray, neighbor: np.ndarray) -> None: ...
    def draw(self) -> None: ...
    def drawn(self, node_type: int) -> np.ndarray: ...  # int64

def order_by_tree(node: np.ndarray, tree: np.ndarray, num_trees: int, order: np.ndarray, ptr: np.ndarray) -> None: ...
def reorder_edges(
    row: np.ndarray,
    col: np.ndarray,
    order: np.ndarray,
    row_out: np.ndarray,
    col_out: np.ndarray,
    edge_order: np.ndarray,
) -> None: ...

# negatives.cc
negative_redraw: int

def negative_draws(
    batch_key: int,
    side: int,
    slots: np.ndarray,
    attempts: np.ndarray,
    num_nodes: int,
    weight_sum: np.ndarray | None,
    out: np.ndarray,
) -> None: ...

class NegativeEnd:
    """One end of negatives, by the addresses of its arrays; see csrc/cuda/negative_kernels.h."""

    def __init__(
        self,
        *,
        num_nodes: int,
        weight_sum: int = 0,
        given: int = 0,
        time: int = 0,
        earliest: int = 0,
        earliest_time: int = 0,
    ) -> None: ...

class DeviceNegatives:
    """Finds negatives by a kernel, on device >= 0 or, -1, on the host. For one thread at a time."""

    def __init__(self, *, device: int, order: str = "forward", shuffle_seed: int = 0, num_threads: int = 1) -> None: ...
    def launch(
        self,
        rows: DeviceRows | None,
        *,
        from_destination: bool,
        src: NegativeEnd,
        dst: NegativeEnd,
        batch_key: int,
        num_slots: int,
        max_attempts: int,
        seed_time: int = 0,
        src_out: int,
        dst_out: int,
        gave_up: int,
        stream: int = 0,
    ) -> None: ...

# hotness.cc
doubt_unit: float

def find_mutual(csr: Csr, back: Csr, mutual: np.ndarray, num_threads: int = 1) -> None: ...
def find_repeated(csr: Csr, repeated: np.ndarray, num_threads: int = 1) -> None: ...
def add_doubt(
    csr: Csr,
    num_neighbors: Sequence[int],
    weighted: bool,
    replace: bool,
    hop: int,
    expanded: np.ndarray,
    neighbor: np.ndarray,
    doubt: np.ndarray,
    mutual: np.ndarray | None = None,
    back: Csr | None = None,
    back_neighbors: Sequence[int] = (),
    repeated: np.ndarray | None = None,
    num_threads: int = 1,
) -> None: ...

most_hotness_hops: int

class DeviceHotness:
    """Passes hotness along edges by a kernel, on device >= 0 or, -1, on the host; see csrc/cuda/hotness_kernels.h. For
    one thread at a time."""

    def __init__(self, *, device: int, order: str = "forward", shuffle_seed: int = 0, num_threads: int = 1) -> None: ...
    def add_doubt(
        self,
        rows: DeviceRows,
        num_neighbors: Sequence[int],
        *,
        weighted: bool,
        replace: bool,
        hop: int,
        expanded: int,
        neighbor: int,
        num_columns: int,
        doubt: int,
        repeated: int = 0,
        mutual: int = 0,
        back: DeviceRows | None = None,
        back_neighbors: Sequence[int] = (),
        stream: int = 0,
    ) -> None: ...

# gather.cc
def collapse_to_huge_pages(array: np.ndarray, seconds: float) -> int: ...
def gather_rows(
    table: np.ndarray,
    ids: np.ndarray | None,
    out: np.ndarray,
    row_of: np.ndarray | None = None,
    positions: np.ndarray | None = None,
    num_threads: int = 1,
    first_id: int = 0,
    packing: tuple[str, int] | None = None,
) -> None: ...
def gather_from(
    sources: list[tuple[np.ndarray, np.ndarray | None, np.ndarray | None, np.ndarray | None, int]],
    out: np.ndarray,
    packing: tuple[str, int] | None = None,
) -> None: ...
def pack_rows(rows: np.ndarray, out: np.ndarray, packing: str, num_threads: int = 1) -> tuple[int, float, float, float]:
    """Packs float32 rows ``[n * columns]``; returns the position of the first number that cannot be stored or -1, sums
    of squares of the differences and of the numbers, and the largest difference."""

def number_rows(ids: np.ndarray, num_rows: int, row_of: np.ndarray | None = None, first_id: int = 0) -> np.ndarray:
    """``row_of[ids[i]]``, or ``ids[i] - first_id``, of a table of ``num_rows`` rows, int64. IndexError of an id that
    has none."""

class DiskRows:
    """Rows of a table in a file; see csrc/core/disk_rows.h."""

    def __init__(self, path: str, offset: int, row_bytes: int, num_rows: int, timeout_s: float) -> None: ...
    @property
    def why_buffered(self) -> str:
        """Why rows are read through the page cache, one after the other; empty: they are not."""
    def read(self, rows: np.ndarray, out: np.ndarray) -> tuple[int, int]:
        """``out[i] = row rows[i]``; returns how many reads that took, and of how many bytes. OSError if one failed."""

class RowIndex:
    """Which ids have a row in a small table; see csrc/core/gather.h."""

    num_rows: int
    num_ids: int
    def __init__(self, ids: np.ndarray, num_ids: int) -> None: ...
    def split(
        self, ids: np.ndarray, positions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]: ...

# Addresses may be of a device, so they are integers; the caller keeps the memory.
class TieredTable:
    """Rows in several tiers of memory; see csrc/cuda/gather.h. A segment is (address, number of rows, stride)."""

    num_rows: int
    def __init__(
        self,
        row_bytes: int,
        tiers: Sequence[tuple[int, int, int]],
        *,
        row_of: tuple[int, int] | None = None,
        first_id: int = 0,
        packing: tuple[str, int] | None = None,
    ) -> None: ...

class GatherCall:
    """Ids and where their rows go."""

    def __init__(
        self,
        ids: int,
        id_bytes: int,
        n: int,
        out: int,
        num_out: int,
        error: int,
        positions: int = 0,
        count: int = 0,
    ) -> None: ...

def host_gather(table: TieredTable, call: GatherCall, num_threads: int) -> tuple[int, int, int]: ...
def cuda_gather(table: TieredTable, call: GatherCall, device: int, stream: int, max_blocks: int = 0) -> None: ...
def cuda_reads_host_memory(device: int) -> bool: ...
def cuda_register_host(address: int, num_bytes: int, read_only: bool, device: int) -> None: ...
def cuda_unregister_host(address: int, device: int) -> None: ...

# keys.cc

KeyColumn = np.ndarray | tuple[np.ndarray, np.ndarray]  # int64, or offsets and UTF-8 bytes

def num_key_slots(num_keys: int) -> int: ...
def add_keys(slots: np.ndarray, columns: Sequence[KeyColumn], first_id: int) -> None: ...
def find_keys(slots: np.ndarray, columns: Sequence[KeyColumn], wanted: Sequence[KeyColumn]) -> np.ndarray: ...
def encode_texts(texts: list[str]) -> tuple[np.ndarray, np.ndarray] | tuple[None, int]: ...
def decode_texts(offsets: np.ndarray, bytes: np.ndarray, rows: np.ndarray) -> list[str]: ...

# slot_cache.cc
class PinnedSlots:
    """Slots that stay while this lives."""

    def written(self) -> None: ...

class SlotCache:
    """Which ids have a slot; see csrc/core/slot_cache.h."""

    num_slots: int
    num_used: int
    def __init__(self, num_slots: int) -> None: ...
    def look_up(
        self, ids: np.ndarray, positions: np.ndarray
    ) -> tuple[PinnedSlots, np.ndarray, np.ndarray, np.ndarray, np.ndarray]: ...
    def admit(self, ids: np.ndarray) -> tuple[PinnedSlots, np.ndarray, np.ndarray]: ...

class RowClaims:
    """Which request brings the row of an id; see csrc/core/row_claims.h."""

    num_ids: int
    def __init__(self) -> None: ...
    def claim(
        self, ids: np.ndarray, positions: np.ndarray, request: int
    ) -> tuple[np.ndarray, np.ndarray, list[tuple[int, np.ndarray, np.ndarray]]]: ...

# row_table.cc

class RowTable:
    """Rows of an array that many threads read and change; see csrc/core/row_table.h."""

    def __init__(self, table: np.ndarray) -> None: ...
    def read(self, rows: np.ndarray | None, first: int, out: np.ndarray, num_threads: int = 1) -> None: ...
    def write(self, rows: np.ndarray | None, first: int, values: np.ndarray, num_threads: int = 1) -> None: ...
    def add(
        self, rows: np.ndarray | None, first: int, values: np.ndarray, dtype: str, num_threads: int = 1
    ) -> None: ...

def random_rows(
    out: np.ndarray,
    ids: np.ndarray | None,
    first: int,
    normal: bool,
    a: float,
    b: float,
    key: int,
    num_threads: int = 1,
) -> None: ...

class RowMerge:
    """Gradients of rows as one sum per row; see csrc/core/row_update.h. Parts are rows (int64) with gradients."""

    def __init__(self, parts: Sequence[tuple[np.ndarray, np.ndarray]], num_rows: int, dim: int) -> None: ...
    def __len__(self) -> int: ...
    def sum(self, rows: np.ndarray, grads: np.ndarray, scale: float = 1.0, num_threads: int = 1) -> None: ...
    def adagrad(
        self,
        weights: RowTable,
        dtype: str,
        sum: RowTable,
        scale: float,
        lr: float,
        eps: float,
        num_threads: int = 1,
    ) -> None: ...
    def adam(
        self,
        weights: RowTable,
        dtype: str,
        mean: RowTable,
        square: RowTable,
        scale: float,
        step_size: float,
        one_less_beta1: float,
        one_less_beta2: float,
        eps: float,
        num_threads: int = 1,
    ) -> None: ...

# partition_files.cc
def crc32(data: np.ndarray, crc: int = 0) -> int: ...
def read_into_huge_pages(fd: int, begin: int, num_bytes: int) -> bool: ...

class BlockFile:
    """Fills a new file in any order, with a CRC-32 for each block."""

    path: str
    num_bytes: int
    def __init__(self, path: str | bytes, num_bytes: int, block_bytes: int) -> None: ...
    def write(self, offset: int, data: np.ndarray) -> None: ...
    def checksum(self) -> list[int]: ...

RowFile = tuple[BlockFile, int]  # and how many bytes precede its first row

def scatter_rows(
    table: np.ndarray,
    book: np.ndarray,
    ids: np.ndarray | None,
    first: int,
    files: Sequence[RowFile],
    filled: np.ndarray,
    owner_file: RowFile | None = None,
    place_file: RowFile | None = None,
    chunk_rows: int = ...,
    num_threads: int = 1,
    progress: Callable[[int], object] | None = None,
) -> None: ...
def number_edges(
    rows: np.ndarray,
    owner: np.ndarray,
    offset: np.ndarray,
    old_ids: RowFile,
    new_ids: RowFile,
    id_width: int,
    chunk_edges: int,
    num_threads: int = 1,
    progress: Callable[[int], object] | None = None,
) -> None: ...
def edge_sort_plan(
    num_edges: int,
    num_ids: int,
    weight_bytes: int,
    has_time: bool,
    indices_width: int,
    edge_ids_width: int,
    thread_bytes: int,
) -> tuple[int, int, int]: ...
def count_rows(
    rows: np.ndarray,
    cols: np.ndarray,
    position: np.ndarray,
    owner: np.ndarray,
    neighbor_owner: np.ndarray,
    num_parts: int,
    indptr: np.ndarray,
    num_threads: int = 1,
    progress: Callable[[int], object] | None = None,
) -> int: ...
def sort_edges(
    rows: np.ndarray,
    cols: np.ndarray,
    weight: np.ndarray | None,
    time: np.ndarray | None,
    time_of_neighbor: bool,
    num_neighbors: int,
    position: np.ndarray,
    first_row: Sequence[int],
    indptr: np.ndarray,
    files: Sequence[Sequence[RowFile]],
    indices_width: int,
    edge_ids_width: int,
    scratch: int,
    thread_bytes: int,
    num_threads: int = 1,
    progress: Callable[[int], object] | None = None,
    neighbor_id: np.ndarray | None = None,
    edge_id: np.ndarray | None = None,
    num_ids: int | None = None,
) -> None: ...

# shm_ring.cc

class BlockPool:
    @staticmethod
    def of_process() -> BlockPool: ...
    def __init__(self, limit_bytes: int) -> None: ...
    def acquire(self, nbytes: int) -> np.ndarray: ...
    def stats(self) -> dict[str, int]: ...

class Mapping:
    nbytes: int
    def __init__(self, fd: int, nbytes: int) -> None: ...
    def array(self) -> np.ndarray: ...

class RingStatus(enum.Enum):
    OK = ...
    TIMEOUT = ...
    CLOSED = ...

class RingReservation:
    array: np.ndarray
    def commit(self) -> None: ...
    def abandon(self) -> None: ...

class RingProducer:
    def __init__(self, region: Mapping, pool: BlockPool) -> None: ...
    def reserve(self, nbytes: int, timeout_s: float) -> tuple[RingStatus, RingReservation | None]: ...
    def close(self, timeout_s: float) -> None: ...

class RingConsumer:
    held_bytes: int
    def __init__(self, region: Mapping, pool: BlockPool) -> None: ...
    def receive(self, timeout_s: float) -> tuple[RingStatus, np.ndarray | None]: ...
    def close(self) -> None: ...

def ring_bytes(arena_bytes: int, num_slots: int) -> int: ...
def format_ring(region: Mapping, arena_bytes: int, num_slots: int) -> None: ...
def close_ring(region: Mapping) -> None: ...
def ring_stats(region: Mapping) -> dict: ...
