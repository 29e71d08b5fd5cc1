"""Mistakes of a first day with one process: graphs, loaders, features, partitions."""

import pytest
from mistake import Mistake

FLAWED_WEIGHTS = "data.w = torch.ones(2 * n).index_fill_(0, torch.tensor([7]), {})\n"

LOADERS = [
    Mistake(
        "ids are floats",
        "NeighborLoader(data, [5], input_nodes=torch.tensor([0.0, 1.0]))",
        "TypeError", "input_nodes", "float32", "expected integer ids", ".long()",
    ),
    Mistake(
        "an id out of range",
        "NeighborLoader(data, [5], input_nodes=torch.tensor([0, 100]))",
        "IndexError", "input_nodes[1]", "= 100", "outside [0, 100)", "num_nodes = 100",
    ),
    Mistake(
        "a negative id",
        "NeighborLoader(data, [5], input_nodes=torch.tensor([0, -1]))",
        "IndexError", "input_nodes[1]", "= -1", "outside [0, 100)",
    ),
    Mistake(
        "a mask of the wrong length",
        "NeighborLoader(data, [5], input_nodes=torch.ones(99, dtype=torch.bool))",
        "ValueError", "input_nodes", "99 elements", "expected one per node, 100",
    ),
    Mistake(
        "ids are names",
        "NeighborLoader(data, [5], input_nodes=['alice', 'bob', 'carol'])",
        "TypeError", "input_nodes", "'alice'", "expected integer ids", "number the nodes first",
    ),
    Mistake(
        "ids are a column of names",
        "NeighborLoader(data, [5], input_nodes=np.array(['alice', 'bob', 'carol']))",
        "TypeError", "input_nodes", "'alice", "expected integer ids", "number the nodes first",
    ),
    Mistake(
        "two names are not a node type",
        "NeighborLoader(data, [5], input_nodes=['alice', 'bob'])",
        "TypeError", "input_nodes", "'alice'", "expected integer ids", "number the nodes first",
    ),
    Mistake(
        "seeds are an iterator",
        "NeighborLoader(data, [5], input_nodes=iter([1, 2]))",
        "TypeError", "input_nodes", "list_iterator", "expected integer ids", "give list(input_nodes)",
    ),
    Mistake(
        "num_neighbors is a number",
        "NeighborLoader(data, 5, input_nodes=ids)",
        "TypeError", "num_neighbors", "= 5", "expected a list with one count per hop", "[15, 10]",
    ),
    Mistake(
        "num_neighbors is negative",
        "NeighborLoader(data, [10, -2], input_nodes=ids)",
        "ValueError", "num_neighbors[1]", "= -2", "expected -1 (all), 0 (none) or a count",
    ),
    Mistake(
        "num_neighbors has more hops than batches can count",
        "NeighborLoader(data, [5] * 300, input_nodes=ids)",
        "ValueError", "num_neighbors", "300 hops", "expected at most",
    ),
    Mistake(
        "num_neighbors names another edge type",
        "NeighborLoader(hetero, {('user', 'sells', 'item'): [5]}, input_nodes='item')",
        "ValueError", "num_neighbors", "'sells'", "'buys'",
    ),
    Mistake(
        "batch_size is 0",
        "NeighborLoader(data, [5], input_nodes=ids, batch_size=0)",
        "ValueError", "batch_size", "= 0", "expected an integer of at least 1",
    ),
    Mistake(
        "a keyword is misspelt",
        "NeighborLoader(data, [5], input_nodes=ids, batchsize=5)",
        "TypeError", "batchsize", "NeighborLoader", "no argument", "did you mean batch_size?",
    ),
    Mistake(
        "input_nodes without the node type",
        "NeighborLoader(hetero, [5], input_nodes=ids)",
        "ValueError", "input_nodes", "without a node type", "expected one of the node types ['user', 'item']", "a pair",
    ),
    Mistake(
        "a node type in the plural",
        "NeighborLoader(hetero, [5], input_nodes=('users', ids))",
        "ValueError", "input_nodes", "'users'", "expected one of ['user', 'item']",
    ),
    Mistake(
        "weights with NaN",
        FLAWED_WEIGHTS.format("float('nan')") + "NeighborLoader(data, [5], input_nodes=ids, weight_attr='w')",
        "ValueError", "data.w[7]", "= nan", "expected finite weights of at least 0", "a weight of 0 keeps an edge out",
    ),
    Mistake(
        "a negative weight",
        FLAWED_WEIGHTS.format("-1.0") + "NeighborLoader(data, [5], input_nodes=ids, weight_attr='w')",
        "ValueError", "data.w[7]", "= -1.0", "expected finite weights of at least 0", "a weight of 0 keeps an edge out",
    ),
    Mistake(
        "times that the graph does not have",
        "NeighborLoader(data, [5], input_nodes=ids, time_attr='time')",
        "ValueError", "time_attr", "'time'", "expected the name of a node-level or edge-level attribute",
    ),
    Mistake(
        "times of too few seeds",
        "data.time = torch.arange(n)\n"
        "NeighborLoader(data, [5], input_nodes=ids, time_attr='time', input_time=torch.arange(5))",
        "ValueError", "input_time", "[5]", "expected one time per seed, [10]",
    ),
    Mistake(
        "times without their name",
        "NeighborLoader(data, [5], input_nodes=ids, input_time=ids)",
        "ValueError", "input_time", "'time_attr' is not set", "seed times compare with the times", "name it",
    ),
    Mistake(
        "labels of too few links",
        "LinkNeighborLoader(data, [5], edge_label_index=edge_index[:, :10], edge_label=torch.ones(9))",
        "ValueError", "edge_label", "9 elements", "expected one per seed, 10",
    ),
    Mistake(
        "links are pairs",
        "LinkNeighborLoader(data, [5], edge_label_index=edge_index.t())",
        "ValueError", "edge_label_index", "[200, 2]", "expected [2, B]",
    ),
    Mistake(
        "negatives of another kind",
        "LinkNeighborLoader(data, [5], edge_label_index=edge_index, neg_sampling='random')",
        "ValueError", "neg_sampling", "'random'", "expected 'binary', 'triplet'",
    ),
    Mistake(
        "edge_index is pairs",
        "NeighborLoader(Data(x=data.x, edge_index=edge_index.t()), [5], input_nodes=ids)",
        "ValueError", "edge_index", "(200, 2)", "expected [2, num_edges]", "pass edge_index.T",
    ),
    Mistake(
        "edge_index is floats",
        "NeighborLoader(Data(x=data.x, edge_index=edge_index.float()), [5], input_nodes=ids)",
        "TypeError", "edge_index", "float32", "expected int32 or int64", "positions of nodes",
    ),
    Mistake(
        "an edge leads out of the graph",
        "NeighborLoader(Data(x=torch.ones(50, 4), edge_index=edge_index), [5], input_nodes=ids)",
        "IndexError", "edge_index[1][8]", "= 56", "outside [0, 50)", "drop the edge",
    ),
    Mistake(
        "features of one node too many",
        "NeighborLoader(Data(x=torch.ones(n + 1, 4), edge_index=edge_index, num_nodes=n), [5], input_nodes=ids)",
        "ValueError", "data.x", "101 rows", "expected one per node", "num_nodes = 100",
    ),
    Mistake(
        "data is a list of graphs",
        "NeighborLoader([data], [5], input_nodes=ids)",
        "TypeError", "data", "list", "expected a PyG Data or HeteroData",
    ),
    Mistake(
        "data is the path of partitions",
        "NeighborLoader('parts', [5], input_nodes=ids)",
        "TypeError", "data", "str", "expected a PyG Data or HeteroData",
    ),
    Mistake(
        "a graph without edges",
        "Dataset.from_pyg(Data(x=data.x))",
        "ValueError", "data", "no edge_index", "expected edge_index [2, E]",
    ),
    Mistake(
        "a transform that is none",
        "NeighborLoader(data, [5], input_nodes=ids, transform='normalize')",
        "TypeError", "transform", "'normalize'", "expected a function of a batch",
    ),
    Mistake(
        "PyG's sampler by name",
        "NeighborLoader(data, [5], input_nodes=ids, neighbor_sampler='uniform')",
        "TypeError", "neighbor_sampler", "str", "expected a PyG BaseSampler",
    ),
    Mistake(
        "a subgraph type that there is not",
        "NeighborLoader(data, [5], input_nodes=ids, subgraph_type='induce')",
        "ValueError", "subgraph_type", "'induce'", "expected one of ['directional', 'bidirectional', 'induced']",
    ),
    Mistake(
        "a row that the features do not have",
        "Feature(data.x).gather(torch.tensor([100]))",
        "IndexError", "ids[0]", "= 100", "no such row", "100",
    ),
    Mistake(
        "features by their file's name",
        "Feature('x.npy')",
        "TypeError", "tensor", "str", "expected a torch.Tensor",
    ),
    Mistake(
        "the state of another loader",
        "state = NeighborLoader(data, [5], input_nodes=torch.arange(20)).state_dict()\n"
        "NeighborLoader(data, [5], input_nodes=ids).load_state_dict(state)",
        "ValueError", "num_seeds", "20", "of this loader 10", "set_epoch(0)",
    ),
]  # fmt: skip

GPUS = [
    Mistake(
        "a GPU samples where there is none",
        "NeighborLoader(Dataset.from_pyg(data), [5], input_nodes=ids, device='cuda')",
        "ValueError", "device", "'cuda'", "CUDA",
    ),
    Mistake(
        "a dataset for a GPU that there is not",
        "Dataset.from_pyg(data).with_mode('CUDA')",
        "ValueError", "mode", "'CUDA'", "Or use 'CPU'",
    ),
    Mistake(
        "a mode that there is not",
        "Dataset.from_pyg(data).with_mode('GPU')",
        "ValueError", "mode", "'GPU'", "expected one of ('CPU', 'ZERO_COPY', 'CUDA')",
    ),
]  # fmt: skip

PARTITIONS = [
    Mistake(
        "no partitions",
        "RandomPartitioner('new', 0, n, edge_index)",
        "ValueError", "num_parts", "= 0", "expected 1 to 65536",
    ),
    Mistake(
        "arguments in another order",
        "RandomPartitioner(2, 'new', n, edge_index)",
        "TypeError", "output_dir", "= 2", "expected the path of a directory",
    ),
    Mistake(
        "partitions of a transposed edge_index",
        "RandomPartitioner('new', 2, n, edge_index.t())",
        "ValueError", "edge_index", "[200, 2]", "expected [2, num_edges]", "pass edge_index.T",
    ),
    Mistake(
        "fewer nodes than the edges name",
        "RandomPartitioner('new', 2, 50, edge_index).partition()",
        "IndexError", "edge_index[0][100]", "= 50", "outside [0, 50)", "pass num_nodes larger than every id",
    ),
    Mistake(
        "features of too few nodes",
        "RandomPartitioner('new', 2, n, edge_index, node_feat=torch.ones(99, 4))",
        "ValueError", "node_feat", "[99, 4]", "expected one row per node, that is 100 rows",
    ),
    Mistake(
        "a mask of too few nodes",
        "RandomPartitioner('new', 2, n, edge_index, node_attrs={'train_mask': torch.ones(99, dtype=torch.bool)})",
        "ValueError", "node_attrs['train_mask']", "[99]", "expected one row per node, that is 100 rows",
    ),
    Mistake(
        "a partitioner's argument is misspelt",
        "RandomPartitioner('new', 2, n, edge_index, node_feats=data.x)",
        "TypeError", "node_feats", "RandomPartitioner", "no argument", "did you mean node_feat?",
    ),
    Mistake(
        "a partitioning method that there is not",
        "gd.partition_graph(data, 'papers', 2, 'new', part_method='kmeans')",
        "ValueError", "part_method", "'kmeans'", "expected one of ['random'",
    ),
    Mistake(
        "METIS is not installed",
        "sys.modules['pymetis'] = None\nMetisPartitioner('new', 2, n, edge_index).partition()",
        "ImportError", "MetisPartitioner", "pymetis", "cannot be imported", "pip install pymetis",
    ),
    Mistake(
        "the directory is there already",
        "RandomPartitioner('parts', 2, n, edge_index).partition()",
        "PartitionError", "output_dir", "parts is not empty", "expected a new or empty directory", "delete it",
    ),
    Mistake(
        "two jobs in one directory",
        "class Slow(RandomPartitioner):\n"
        "    def assign_nodes(self, node_type, num_nodes):\n"
        "        RandomPartitioner('new', 3, n, edge_index).partition()  # another job is faster\n"
        "        return super().assign_nodes(node_type, num_nodes)\n"
        "Slow('new', 2, n, edge_index).partition()  # <- here",
        "PartitionError", "output_dir", "new is not empty", "expected a new or empty directory", "delete it",
    ),
    Mistake(
        "a directory that cannot be written",
        "RandomPartitioner('/proc/new', 2, n, edge_index).partition()",
        "FileNotFoundError", "output_dir", "/proc/new", "cannot be written", "choose a directory in which",
    ),
    Mistake(
        "the disk fills up",
        "import resource\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))\n"
        "RandomPartitioner('new', 2, n, edge_index, node_feat=torch.ones(n, 1000)).partition()",
        "OSError", "output_dir", "File too large", "cannot be written", "free some",
    ),
    Mistake(
        "nothing was partitioned",
        "load_partition('nowhere', 0)",
        "PartitionError", "nowhere", "is not a directory", "expected what a partitioner wrote", "partition first",
    ),
    Mistake(
        "a partition that there is not",
        "load_partition('parts', 2)",
        "PartitionError", "partition_idx", "= 2", "expected 0 to 1", "a partition of",
    ),
    Mistake(
        "a file was not copied",
        "os.unlink('parts/part1/graph/node__to__node/indices.npy')\nload_partition('parts', 1)",
        "PartitionError", "indices.npy", "is missing", "expected the file of run", "copy the directory again",
    ),
    Mistake(
        "a file was copied in part",
        "os.truncate('parts/part0/graph/node__to__node/indices.npy', 200)\nload_partition('parts', 0)",
        "PartitionError", "indices.npy", "has 200 bytes", "expected the file of run", "copy the directory again",
    ),
    Mistake(
        "a partition of another run",
        "RandomPartitioner('new', 2, n, edge_index, random_seed=7).partition()\n"
        "os.replace('new/node_book/node.npy', 'parts/node_book/node.npy')\n"
        "load_partition('parts', 1)",
        "PartitionError", "node_book/node.npy", "comes from another run", "expected the file of run", "partition again",
    ),
]  # fmt: skip


@pytest.mark.parametrize("mistake", LOADERS + PARTITIONS, ids=lambda mistake: mistake.name)
def test_one_process(mistake, ended):
    mistake.judge(ended("train.py", script=mistake.script()))


@pytest.mark.parametrize("mistake", GPUS, ids=lambda mistake: mistake.name)
def test_without_a_gpu(mistake, ended, monkeypatch):
    """Kernels may be missing, a torch with CUDA, a driver or a GPU; test/data/test_device.py has the texts."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    mistake.judge(ended("train.py", script=mistake.script()))
