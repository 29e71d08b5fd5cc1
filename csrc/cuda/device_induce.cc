// Induced subgraphs of batches on a device.
#include "core/check.h"
#include "cuda/device_batch.h"
#include "cuda/pieces.h"

namespace glt::cuda {

// Lays out the tasks in a workspace at `base`; returns its size. Null: only that.
int64_t DeviceBatch::lay_out_induced(std::byte* base) {
  Pieces pieces(base);
  const int num_types = num_edge_types();
  induced_words_ = pieces.take<int64_t>(3 * num_types);
  induce_tasks_.assign(num_types, {});
  for (int r = 0; r < num_types; ++r) {
    if (!graphs_[r]) continue;
    const NodeType &centers = types_[ends_[r].first], &members = types_[ends_[r].second];
    InduceTask& task = induce_tasks_[r];
    task.rows = *graphs_[r];
    task.center = centers.node;
    task.num_centers = known_nodes(ends_[r].first);
    task.members = members.found;
    task.row_tiles = tiles_for(task.num_centers, 1);
    task.edge_tiles = tiles_for(task.rows.num_edges, 4);
    task.degree_sums = pieces.take<int64_t>(task.row_tiles);
    task.member_sums = pieces.take<int64_t>(task.edge_tiles);
    task.row_begin = pieces.take<int64_t>(task.num_centers);
    if (!base) continue;
    task.num_candidates = induced_words_ + r;
    task.num_edges = induced_words_ + num_types + r;
    task.bad = reinterpret_cast<uint64_t*>(induced_words_ + 2 * num_types + r);
  }
  return pieces.bytes();
}

int64_t DeviceBatch::induced_bytes() {
  require(state_ == State::kDone, "induce: the batch is not finished: call launch and wait first");
  require(!spec_.disjoint, "an induced subgraph of a disjoint batch: expected disjoint = False");
  return lay_out_induced(nullptr);
}

void DeviceBatch::induce(void* workspace) {
  (void)induced_bytes();
  lay_out_induced(static_cast<std::byte*>(workspace));
  const int64_t bytes = 3 * num_edge_types() * static_cast<int64_t>(sizeof(int64_t));
  launcher_->zero(induced_words_, bytes);
  for (int r = 0; r < num_edge_types(); ++r) {
    if (!graphs_[r]) continue;
    const InduceTask& task = induce_tasks_[r];
    launcher_->run(CountDegrees{task}, task.row_tiles, 1);
    launcher_->run(PlaceDegrees{task}, task.row_tiles, 1);
    launcher_->run(CountMembers{task}, task.edge_tiles, 1);
    launcher_->run(SumMembers{task}, 1, 1);
  }
  staging_ = static_cast<int64_t*>(launcher_->staging(bytes));
  launcher_->to_host(staging_, induced_words_, bytes);
  launcher_->mark();
  state_ = State::kInducing;
}

void DeviceBatch::wait_induced() {
  require(state_ == State::kInducing, "wait_induced: call induce first");
  state_ = State::kIdle;
  launcher_->wait();
  const int num_types = num_edge_types();
  for (int r = 0; r < num_types; ++r)
    require_index(staging_[2 * num_types + r] == 0, "neighbour id ", staging_[2 * num_types + r], " is outside [0, ",
                  types_[ends_[r].second].num_nodes, "): the graph's columns are damaged");
  num_induced_.assign(staging_ + num_types, staging_ + 2 * num_types);
  state_ = State::kInduced;
}

void DeviceBatch::copy_induced(int edge_type, const EdgesOut& out) {
  if (num_induced_[edge_type] == 0) return;
  const InduceTask& task = induce_tasks_[edge_type];
  launcher_->run(WriteMembers{task, out.row, out.col, out.edge}, task.edge_tiles, 1);
}

}  // namespace glt::cuda
