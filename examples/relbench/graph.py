"""The shop's graph as RelBench makes it, whole or in partitions, and RelBench's model of it."""

import argparse
import os

import torch
import torch.distributed as dist
from relbench.modeling.graph import make_pkey_fkey_graph
from relbench.modeling.nn import HeteroEncoder, HeteroGraphSAGE, HeteroTemporalEncoder
from relbench.modeling.utils import get_stype_proposal
from torch_geometric.nn import MLP

import glt

RANK, WORLD_SIZE = (int(os.environ.get(name, default)) for name, default in (("RANK", 0), ("WORLD_SIZE", 1)))


def flags(epochs, num_neighbors):
    parser = argparse.ArgumentParser()
    parser.add_argument("--loader", choices=["glt", "pyg"], default="glt")
    parser.add_argument("--num-neighbors", type=int, nargs="+", default=num_neighbors, help="per hop; -1: all")
    parser.add_argument("--sampler", choices=["neighbor", "labor"], default="neighbor", help="of glt's loaders")
    parser.add_argument("--epochs", type=int, default=epochs)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--channels", type=int, default=32)
    parser.add_argument("--parts", default="shop-parts", help="where torchrun's trainers put partitions")
    args = parser.parse_args()
    if args.loader == "pyg" and args.sampler != "neighbor":
        parser.error(f"--sampler {args.sampler} is of glt's loaders: leave it out, or --loader pyg")
    return args


def sampling(args):
    """How neighbours are chosen, as glt's loaders take it and PyG's do not."""
    return {} if args.loader == "pyg" else {"sampler": args.sampler}


def graph_of(db):
    """A ``HeteroData`` with a TensorFrame ``tf`` of each table, and what the encoders want to know of its columns."""
    return make_pkey_fkey_graph(db, get_stype_proposal(db))


def partition_of(data, folder):
    """This trainer's partition of the graph, which rank 0 divides."""
    dist.init_process_group("gloo")
    if RANK == 0:
        given = glt.partition.graph_arguments(data, time_attr="time")
        glt.partition.RandomPartitioner(folder, WORLD_SIZE, **given, overwrite=True).partition()
    dist.barrier()
    glt.distributed.init_worker_group(WORLD_SIZE, RANK)
    return glt.distributed.DistDataset().load(folder, RANK)


class Model(torch.nn.Module):
    def __init__(self, data, col_stats, channels, num_layers, out_channels, embedded=()):
        super().__init__()
        columns = {node_type: data[node_type].tf.col_names_dict for node_type in data.node_types}
        self.encoder = HeteroEncoder(
            channels, columns, col_stats, torch_frame_model_kwargs={"channels": channels, "num_layers": 2}
        )
        timed = [node_type for node_type in data.node_types if "time" in data[node_type]]
        self.time = HeteroTemporalEncoder(timed, channels)
        self.gnn = HeteroGraphSAGE(data.node_types, data.edge_types, channels, "sum", num_layers)
        self.head = MLP(channels, out_channels=out_channels, norm=None, num_layers=1)
        counts = {node_type: data[node_type].tf.num_rows for node_type in embedded}
        self.embeddings = torch.nn.ModuleDict({each: torch.nn.Embedding(n, channels) for each, n in counts.items()})

    def forward(self, batch, node_type):
        seed_time = batch[node_type].seed_time
        x = self.encoder(batch.tf_dict)
        for each, encoded in self.time(seed_time, batch.time_dict, batch.batch_dict).items():
            x[each] = x[each] + encoded
        for each, embedding in self.embeddings.items():
            x[each] = x[each] + embedding(batch[each].n_id)
        return self.head(self.gnn(x, batch.edge_index_dict)[node_type][: len(seed_time)])
