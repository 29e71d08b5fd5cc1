"""The shop's graph as RelBench makes it, and RelBench's model of it."""

import torch
from relbench.modeling.graph import make_pkey_fkey_graph
from relbench.modeling.nn import HeteroEncoder, HeteroGraphSAGE, HeteroTemporalEncoder
from relbench.modeling.utils import get_stype_proposal
from torch_geometric.nn import MLP


def graph_of(db):
    """A ``HeteroData`` with a TensorFrame ``tf`` of each table, and what the encoders want to know of its columns."""
    return make_pkey_fkey_graph(db, get_stype_proposal(db))


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
