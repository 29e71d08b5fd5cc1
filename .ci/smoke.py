"""What a stranger tries first: batches of a small graph, in process. Runs with nothing but an installed glt."""

from glt.data.synthetic import synthetic_graph
from glt.loader import NeighborLoader

data = synthetic_graph().to_pyg()
loader = NeighborLoader(data, num_neighbors=[15, 10], input_nodes=data.train_mask, batch_size=512, random_seed=7)
for batch in loader:
    print(batch, flush=True)
