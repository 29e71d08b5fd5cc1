// One batch sampled on a device: the same batch as core/batch.h makes, bit for bit.
//
// The host makes all launches of a batch at once and waits once, for the counts. Memory is the caller's. How many nodes
// and edges there are is known on the device alone, so arrays have room for an upper bound, or for what batches have
// needed so far where that is less; if it was too little, the batch says so and is made anew: it is a pure function.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "core/rows.h"
#include "cuda/device_rows.h"
#include "cuda/hop_tasks.h"
#include "cuda/induce_kernels.h"
#include "cuda/launcher.h"

namespace glt::cuda {

// The seeds of one node type, in memory that kernels can read.
struct DeviceSeeds {
  int node_type;
  const int64_t* node;  // [n]
  int64_t n;
  const uint32_t* tree = nullptr;  // [n], of a disjoint batch; null: each seed is one of its own, they count on
};

struct DeviceSpec {
  std::vector<std::vector<int64_t>> num_neighbors;  // [edge types][hops]
  bool replace = false;
  uint64_t batch_key = 0;
  bool latest_only = false;
  bool with_edge = true;
  bool disjoint = false;
  const int64_t* seed_time = nullptr;  // [num_times], by tree, in memory that kernels can read; null: none
  int64_t num_times = 0;
  std::vector<const Exclusions*> exclusions;  // [edge types], null for none; or empty. Must stay until the launch
  int64_t first_hop = 0;                      // what draws take the first hop for: seeds may be a later hop's frontier
  std::vector<int64_t> time_window;           // [edge types], -1 for none; or empty
  std::vector<int64_t> half_life;             // [edge types], 0 for none; or empty
  bool by_number = false;                     // as of BatchSpec
  uint64_t shared_key = 0;
};

// What a batch needs of its caller, aligned to 256 bytes; tables stay with the object, batch after batch.
struct DeviceNeeds {
  int64_t workspace_bytes = 0;
  std::vector<int64_t> table_words;  // [node types], words of 4 bytes
};

// Where results go, in memory that kernels can write. Of one node type; node null: nothing of it is wanted.
struct NodesOut {
  int64_t *node, *tree;  // [num_nodes]; tree null: not wanted
};
// Of one edge type; row null: nothing of it is wanted.
struct EdgesOut {
  int64_t *row, *col, *edge;  // [num_edges]; edge null: not wanted
};

class DeviceBatch {
 public:
  // As Batch. first_room: occurrences of a type that the first batch has room for, if its bound is above.
  DeviceBatch(const std::vector<int64_t>& num_nodes, const std::vector<std::pair<int, int>>& ends, int64_t dense_limit,
              int64_t first_room, std::unique_ptr<Launcher> launcher);

  // Plans a batch. A null graph has no edges of its type. Throws std::invalid_argument for what means nothing.
  DeviceNeeds prepare(const std::vector<const DeviceRows*>& graphs, const std::vector<DeviceSeeds>& seeds,
                      const DeviceSpec& spec);
  // Launches it on `stream` and returns. All memory must stay until the batch has been copied out.
  void launch(void* workspace, const std::vector<uint32_t*>& tables, void* stream);
  // Waits for it. False if there was too little room: prepare it again, which asks for more. Throws std::out_of_range
  // naming the first seed, or a neighbour, that is outside the graph.
  bool wait();

  // Replaces the edges of a finished batch by all edges among its nodes, as Batch::induce; takes a wait of its own.
  int64_t induced_bytes();  // of the workspace, which must stay until the batch has been copied out
  void induce(void* workspace);
  void wait_induced();

  // Of a finished batch; of an induced one, edges have no hops.
  int64_t num_nodes(int node_type) const;
  int64_t num_edges(int edge_type) const;
  std::vector<int64_t> num_sampled_nodes(int node_type) const;
  std::vector<int64_t> num_sampled_edges(int edge_type) const;
  // Launches copies of all results, by type.
  void copy_out(const std::vector<NodesOut>& nodes, const std::vector<EdgesOut>& edges);

  int64_t num_replays() const { return launcher_->num_replays(); }  // of batches; see Launcher::sequence
  int num_node_types() const { return static_cast<int>(types_.size()); }
  int num_edge_types() const { return static_cast<int>(ends_.size()); }
  bool with_edge() const { return spec_.with_edge; }
  bool disjoint() const { return spec_.disjoint; }

 private:
  // One node type, between batches and in one.
  struct NodeType {
    int64_t num_nodes;
    int64_t room;           // what batches have needed
    int64_t shortfall = 0;  // what this one has turned out to need
    int64_t bound = 0;      // of the present plan, if no seed comes twice
    int64_t least = 0;      // what batches have needed beyond that: with it, the next ones like them have one plan
    uint32_t* table = nullptr;
    int64_t table_words = 0;
    uint64_t next_base = 0;  // first word that no batch has used
    uint64_t stamp_range = 0;
    int64_t num_seeds = 0, capacity = 0;
    bool hashed = false;
    Occurrences found;
    int64_t* node = nullptr;
    uint32_t* tree = nullptr;
    int64_t *edge_sums = nullptr, *node_sums = nullptr;
    int edge_tiles = 0;  // of all edge types that lead here in one hop
  };
  static constexpr int kByEdge = -1;
  // One edge type at one hop, before it has memory.
  struct Expansion {
    int edge_type;
    int64_t k, frontier_bound, edge_bound;
    int pick;  // K of PickRows, or kByEdge
  };
  struct Hop {
    std::vector<Expansion> expansions;
    std::vector<int64_t> found_bound;  // [node types]
    int64_t first_task = 0;
  };
  // Where the counts of a batch are; see lay_out.
  struct Counts {
    int64_t *known, *found, *edges_begin, *edges_end, *bad, *need, *excluded;
    uint64_t *batch_key, *shared_key, *stamp_range;  // parameters: kernels of all batches of a plan read them here
  };
  // Of one edge type: what of its exclusions has room in the workspace, and found positions too, in powers of two.
  struct ExcludedRoom {
    int64_t slots = 0, neighbors = 0, positions = 0;
    int64_t shortfall = 0;  // of positions
  };

  void plan_hops();
  int pick_of(int edge_type, int64_t k) const;
  bool by_weight(int edge_type) const;
  int64_t half_life_of(int edge_type) const { return spec_.half_life.empty() ? 0 : spec_.half_life[edge_type]; }
  Counts counts_at(int64_t* words) const;
  int64_t num_count_words() const;
  int64_t lay_out(std::byte* base);
  void make_tasks();
  void stage();
  std::vector<int64_t> plan_of(const std::byte* workspace) const;
  void plan_excluded();
  int64_t count_bytes() const { return num_count_words() * static_cast<int64_t>(sizeof(int64_t)); }
  void prepare_tables(const std::vector<uint32_t*>& tables);
  void launch_all();
  void launch_seeds();
  void launch_hop(const Hop& hop, int64_t index);
  void require_valid_ids();
  void require_done() const;
  int64_t lay_out_induced(std::byte* base);
  void copy_induced(int edge_type, const EdgesOut& out);
  int64_t known_nodes(int node_type) const;

  std::vector<NodeType> types_;
  std::vector<std::pair<int, int>> ends_;
  int64_t dense_limit_;
  std::unique_ptr<Launcher> launcher_;

  DeviceSpec spec_;
  std::vector<DeviceSeeds> seeds_;
  std::vector<const DeviceRows*> graphs_;
  std::vector<Hop> hops_;
  int64_t num_hops_ = 0, num_edge_tasks_ = 0;
  enum class State { kIdle, kPrepared, kLaunched, kDone, kInducing, kInduced } state_ = State::kIdle;

  // By hop, then as the hop's expansions stand, or by node type.
  std::vector<EdgeTask> edge_tasks_;
  std::vector<NodeTask> node_tasks_;
  int64_t* count_words_ = nullptr;   // in the workspace
  std::vector<RowSpan*> spans_;      // [edge types], null where no hop expands any
  std::vector<int64_t*> row_begin_;  // [edge types], null where no hop goes edge by edge
  int64_t* staging_ = nullptr;       // the counts on the host; behind them the tables of excluded edges
  int64_t staged_bytes_ = 0;
  std::vector<ExcludedRoom> excluded_room_;  // [edge types]
  std::vector<ExcludedRows> excluded_;       // [edge types]
  std::vector<int64_t> counted_;             // the counts of a finished batch

  std::vector<InduceTask> induce_tasks_;  // [edge types]
  int64_t* induced_words_ = nullptr;
  std::vector<int64_t> num_induced_;  // edges of each type
};

}  // namespace glt::cuda
