#include "core/fennel.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "core/check.h"
#include "core/rng.h"

namespace glt {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

// The loads of all partitions, and the choice among them.
class Placement {
 public:
  Placement(const Adjacency& graph, const Balance& balance, double penalty, uint64_t key)
      : balance_(balance),
        num_parts_(balance.num_parts),
        penalty_(penalty),
        key_(key),
        num_nodes_(static_cast<size_t>(balance.num_labels * num_parts_)),
        node_cost_(num_nodes_.size()),
        mean_nodes_(static_cast<size_t>(balance.num_labels)),
        floor_(static_cast<size_t>(balance.num_labels)),
        num_edges_(static_cast<size_t>(balance.num_kinds) * num_nodes_.size()),
        edge_cost_(num_edges_.size()),
        mean_edges_(static_cast<size_t>(balance.num_kinds * balance.num_labels)),
        num_all_nodes_(static_cast<size_t>(num_parts_)),
        votes_(num_all_nodes_.size()) {
    double num_edges = 0;
    for (int64_t v = 0; v < graph.num_nodes; ++v) {
      const int64_t label = label_of(v);
      require_index(label < balance.num_labels, "label[", v, "] = ", label, ": expected less than ",
                    balance.num_labels);
      mean_nodes_[label] += 1;
      for_edges(v, [&](int64_t group, int64_t edges) {
        mean_edges_[group] += static_cast<double>(edges);
        num_edges += static_cast<double>(edges);
      });
    }
    for (double& mean : mean_nodes_) mean /= static_cast<double>(num_parts_);
    for (double& mean : mean_edges_) mean /= static_cast<double>(num_parts_);
    mean_degree_ = std::max(1.0, num_edges) / static_cast<double>(std::max<int64_t>(1, graph.num_nodes));
  }

  int64_t label_of(int64_t v) const { return balance_.label ? balance_.label[v] : 0; }

  bool is_overfull(int64_t v, int64_t part) const {
    const int64_t label = label_of(v);
    return num_nodes_[label * num_parts_ + part] > balance_.label_cap[label];
  }

  // From now on, a partition has room for no more than `cap` nodes of all labels together.
  void limit_nodes(int64_t cap) { node_cap_ = cap; }
  int64_t excess(int64_t part) const { return num_all_nodes_[part] - node_cap_; }

  void vote(int64_t part) {
    if (votes_[part]++ == 0) voted_.push_back(part);
  }

  void forget_votes() {
    for (const int64_t part : voted_) votes_[part] = 0;
    voted_.clear();
  }

  void put(int64_t v, int64_t part) { add(v, part, 1); }

  void take(int64_t v, int64_t part) {
    add(v, part, -1);
    double& least = floor_[label_of(v)];
    least = std::min(least, node_cost_[label_of(v) * num_parts_ + part]);
  }

  // Of a kind that the node has some of.
  bool has_too_many_edges(int64_t v, int64_t part) const {
    bool found = false;
    for_edges(v, [&](int64_t group, int64_t) {
      found = found || num_edges_[group * num_parts_ + part] > balance_.edge_cap[group];
    });
    return found;
  }

  // The partition of the best score among those with room; `current` (-1: none) wins a tie, then the cheaper one.
  int64_t choose(int64_t v, int64_t current) {
    const int64_t label = label_of(v), part = find_any(v, current);
    require(part >= 0, "label_cap[", label, "] = ", balance_.label_cap[label],
            ": no partition has room for another node");
    return part;
  }

  // The same, or -1 where none has room for the node.
  int64_t find_any(int64_t v, int64_t current) {
    const int64_t best = find_best(v, current);
    return best >= 0 ? best : find_fewest_edges(label_of(v));
  }

  // The same, or -1 where none has room for the node and its edges too.
  int64_t find_best(int64_t v, int64_t current) {
    const int64_t label = label_of(v);
    loads_.clear();
    for_edges(v, [&](int64_t group, int64_t edges) {
      loads_.push_back({group, edges, static_cast<double>(edges) / mean_degree_});
    });
    Candidate best;
    for (const int64_t part : voted_)
      if (has_room(label, part) && has_edge_room(part)) best.meet(score(label, part), cost(label, part), part, current);
    // Of partitions without a neighbour only the cheapest can win, and only if no cost rules it out beforehand.
    if (best.part < 0 || best.score < -floor_[label]) {
      const int64_t cheapest = find_cheapest(v, label);
      if (cheapest >= 0) best.meet(score(label, cheapest), cost(label, cheapest), cheapest, current);
    }
    return best.part;
  }

 private:
  struct Candidate {
    double score = 0, cost = 0;
    int64_t part = -1;

    void meet(double other_score, double other_cost, int64_t other, int64_t current) {
      const bool wins = part < 0 || other_score > score ||
                        (other_score == score && part != current && (other == current || other_cost < cost));
      if (wins) *this = {other_score, other_cost, other};
    }
  };

  // Edges of a group, that is of a kind, of the nodes of a label; `share` is 1 for as many as nodes have of all groups
  // on average.
  struct Load {
    int64_t group, edges;
    double share;
  };

  // Calls visit(group, edges) for each group of edges that go with the node.
  template <typename Visit>
  void for_edges(int64_t v, Visit visit) const {
    for (const OwnedEdges& each : balance_.edges) {
      if (v >= each.end) continue;
      const int64_t* count = each.count + (v - each.begin) * each.num_kinds;
      for (int64_t k = 0; k < each.num_kinds; ++k)
        if (count[k] > 0) visit((each.first_kind + k) * balance_.num_labels + label_of(v), count[k]);
      return;
    }
  }

  bool has_room(int64_t label, int64_t part) const {
    return num_nodes_[label * num_parts_ + part] < balance_.label_cap[label] && num_all_nodes_[part] < node_cap_;
  }
  bool has_edge_room(int64_t part) const {
    return std::all_of(loads_.begin(), loads_.end(), [&](const Load& load) {
      return num_edges_[load.group * num_parts_ + part] + load.edges <= balance_.edge_cap[load.group];
    });
  }
  // What the node and its edges add to the cost of the partition's loads.
  double cost(int64_t label, int64_t part) const {
    double sum = node_cost_[label * num_parts_ + part];
    for (const Load& load : loads_) sum += load.share * edge_cost_[load.group * num_parts_ + part];
    return sum;
  }
  double score(int64_t label, int64_t part) const { return static_cast<double>(votes_[part]) - cost(label, part); }

  void add(int64_t v, int64_t part, int64_t sign) {
    const int64_t label = label_of(v), at = label * num_parts_ + part;
    num_nodes_[at] += sign;
    num_all_nodes_[part] += sign;
    node_cost_[at] = penalty_ * std::sqrt(static_cast<double>(num_nodes_[at]) / mean_nodes_[label]);
    for_edges(v, [&](int64_t group, int64_t edges) {
      const int64_t of_group = group * num_parts_ + part;
      num_edges_[of_group] += sign * edges;
      edge_cost_[of_group] = penalty_ * std::sqrt(static_cast<double>(num_edges_[of_group]) / mean_edges_[group]);
    });
  }

  // -1 where none has room for the node and its edges. Equally cheap ones are tried from a random one on.
  int64_t find_cheapest(int64_t v, int64_t label) {
    const int64_t start = static_cast<int64_t>(
        bounded(NodeDraws(key_, 0, 0, static_cast<uint64_t>(v))(0), static_cast<uint64_t>(num_parts_)));
    double least = kInfinite, least_with_edge_room = kInfinite;
    int64_t found = -1;
    for (int64_t i = 0; i < num_parts_; ++i) {
      const int64_t part = start + i < num_parts_ ? start + i : start + i - num_parts_;
      if (!has_room(label, part)) continue;
      const double part_cost = cost(label, part);
      least = std::min(least, node_cost_[label * num_parts_ + part]);
      if (part_cost >= least_with_edge_room || !has_edge_room(part)) continue;
      least_with_edge_room = part_cost;
      found = part;
    }
    floor_[label] = least;
    return found;
  }

  // Of the groups that the node at hand has edges of.
  int64_t find_fewest_edges(int64_t label) const {
    double fewest = kInfinite;
    int64_t found = -1;
    for (int64_t part = 0; part < num_parts_; ++part) {
      if (!has_room(label, part)) continue;
      double edges = 0;
      for (const Load& load : loads_)
        edges += static_cast<double>(num_edges_[load.group * num_parts_ + part]) / mean_edges_[load.group];
      if (edges >= fewest) continue;
      fewest = edges;
      found = part;
    }
    return found;
  }

  const Balance& balance_;
  const int64_t num_parts_;
  const double penalty_;
  const uint64_t key_;
  std::vector<int64_t> num_nodes_;      // [num_labels, num_parts]
  std::vector<double> node_cost_;       // [num_labels, num_parts]
  std::vector<double> mean_nodes_;      // [num_labels]
  std::vector<double> floor_;           // [num_labels], no partition with room has nodes that cost less
  std::vector<int64_t> num_edges_;      // [num_groups, num_parts]
  std::vector<double> edge_cost_;       // [num_groups, num_parts]
  std::vector<double> mean_edges_;      // [num_groups]
  std::vector<int64_t> num_all_nodes_;  // [num_parts]
  int64_t node_cap_ = std::numeric_limits<int64_t>::max();
  double mean_degree_ = 1;      // of edges of all groups
  std::vector<Load> loads_;     // of the node at hand
  std::vector<int64_t> votes_;  // [num_parts], neighbours of the node at hand
  std::vector<int64_t> voted_;  // partitions with votes
};

enum class Order { kById, kHubsFirst, kHubsLast };

// Calls visit(v) for every node in the order of the stream.
template <typename Visit>
void stream(const Adjacency& graph, Order order, Visit visit) {
  if (order == Order::kById) {
    for (int64_t v = 0; v < graph.num_nodes; ++v) visit(v);
    return;
  }
  // Of degrees within a factor of eight the order of ids is kept, so that rows are read in order a few times over.
  const auto degree_class = [&](int64_t v) -> int {
    return (static_cast<int>(std::bit_width(static_cast<uint64_t>(graph.indptr[v + 1] - graph.indptr[v]))) + 2) / 3;
  };
  int largest = 0;
  for (int64_t v = 0; v < graph.num_nodes; ++v) largest = std::max(largest, degree_class(v));
  for (int i = 0; i <= largest; ++i) {
    const int wanted = order == Order::kHubsFirst ? largest - i : i;
    for (int64_t v = 0; v < graph.num_nodes; ++v)
      if (degree_class(v) == wanted) visit(v);
  }
}

template <typename Id, typename Owner>
int64_t pass(const Adjacency& graph, const Balance& balance, double penalty, bool is_first, uint64_t key,
             const Id* indices, Owner* owner) {
  Placement placement(graph, balance, penalty, key);
  std::vector<bool> is_placed(static_cast<size_t>(graph.num_nodes));
  int64_t num_cut = 0;
  stream(graph, is_first ? Order::kHubsFirst : Order::kById, [&](int64_t v) {
    const int64_t begin = graph.indptr[v], end = graph.indptr[v + 1];
    for (int64_t e = begin; e < end; ++e)
      if (indices[e] != v && (!is_first || is_placed[indices[e]])) placement.vote(owner[indices[e]]);
    const int64_t part = placement.choose(v, is_first ? -1 : owner[v]);
    placement.forget_votes();
    placement.put(v, part);
    owner[v] = static_cast<Owner>(part);
    for (int64_t e = begin; e < end; ++e) num_cut += is_placed[indices[e]] && owner[indices[e]] != owner[v];
    is_placed[v] = true;
  });
  return num_cut;
}

template <typename Id, typename Owner>
int64_t move(const Adjacency& graph, const Balance& balance, int64_t node_cap, double penalty, uint64_t key,
             const Id* indices, Owner* owner) {
  Placement placement(graph, balance, penalty, key);
  for (int64_t v = 0; v < graph.num_nodes; ++v) placement.put(v, owner[v]);
  int64_t num_moved = 0;
  const auto vote = [&](int64_t v) {
    for (int64_t e = graph.indptr[v]; e < graph.indptr[v + 1]; ++e)
      if (indices[e] != v) placement.vote(owner[indices[e]]);
  };
  const auto move_to = [&](int64_t v, int64_t part) {
    placement.take(v, owner[v]);
    placement.put(v, part);
    owner[v] = static_cast<Owner>(part);
    ++num_moved;
  };
  // Where edges are balanced, hubs stay where they were balanced.
  const Order order = balance.edges.empty() ? Order::kById : Order::kHubsLast;
  stream(graph, order, [&](int64_t v) {
    if (!placement.is_overfull(v, owner[v])) return;
    vote(v);
    const int64_t part = placement.choose(v, -1);  // never the one it is in, which has no room
    placement.forget_votes();
    move_to(v, part);
  });
  // Of two partitions, the one with more nodes has more of some label than the other, which thus has room for that
  // label: each round over the nodes finds one to move as long as there is a partition with too many.
  placement.limit_nodes(node_cap);
  int64_t excess = 0;
  for (int64_t part = 0; part < balance.num_parts; ++part) excess += std::max<int64_t>(0, placement.excess(part));
  while (excess > 0) {
    const int64_t before = excess;
    stream(graph, order, [&](int64_t v) {
      if (excess <= 0 || placement.excess(owner[v]) <= 0) return;
      vote(v);
      const int64_t part = placement.find_any(v, -1);
      placement.forget_votes();
      if (part < 0) return;  // its label has room only where there are enough nodes already
      move_to(v, part);
      --excess;
    });
    require(excess < before, "node_cap = ", node_cap, ": ", balance.num_parts, " partitions have no room for ",
            graph.num_nodes, " nodes");
  }
  // Hubs first: few moves, where partitions have little room for more nodes. One that has more edges than the cap
  // stays. What leaves makes room, so that it takes further rounds; where a node goes, there are never too many, so it
  // goes once.
  if (balance.edges.empty()) return num_moved;
  for (int64_t before = -1; num_moved != before;) {
    before = num_moved;
    stream(graph, Order::kHubsFirst, [&](int64_t v) {
      if (!placement.has_too_many_edges(v, owner[v])) return;
      vote(v);
      const int64_t part = placement.find_best(v, -1);
      placement.forget_votes();
      if (part >= 0) move_to(v, part);
    });
  }
  return num_moved;
}

void require_owners(const Balance& balance, Owners owner, int64_t num_nodes) {
  std::visit(
      [&](auto* p) {
        for (int64_t v = 0; v < num_nodes; ++v)
          require_index(p[v] < balance.num_parts, "owner[", v, "] = ", int64_t{p[v]}, ": expected less than ",
                        balance.num_parts);
      },
      owner);
}

}  // namespace

int64_t fennel_pass(const Adjacency& graph, const Balance& balance, double penalty, bool is_first, uint64_t key,
                    Owners owner) {
  if (!is_first) require_owners(balance, owner, graph.num_nodes);
  return std::visit([&](auto* indices, auto* p) { return pass(graph, balance, penalty, is_first, key, indices, p); },
                    graph.indices, owner);
}

int64_t move_overfull(const Adjacency& graph, const Balance& balance, int64_t node_cap, double penalty, uint64_t key,
                      Owners owner) {
  require_owners(balance, owner, graph.num_nodes);
  return std::visit([&](auto* indices, auto* p) { return move(graph, balance, node_cap, penalty, key, indices, p); },
                    graph.indices, owner);
}

}  // namespace glt
