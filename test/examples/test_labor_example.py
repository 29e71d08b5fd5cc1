"""The example of embeddings with LABOR learns what it learns with drawn and with all neighbours."""

import re

TOY = ["--epochs", "3", "--hidden_channels", "32", "--batch_size", "32", "--lr", "0.01", "--max_links", "1500"]


def test_labor_learns_what_all_neighbours_do_from_fewer_nodes(toy_npz, run):
    """Of 200 test nodes and about 1,100 pairs: one standard error is 0.02 of either."""
    told = run("examples/labor_embeddings.py", "--data", toy_npz, "--num_neighbors", "4,4", *TOY).stdout
    lines = re.findall(r"(\w+): +(\d+) nodes.* accuracy: ([\d.]+), Test AUC: ([\d.]+)", told)
    found = {way: [*map(float, numbers)] for way, *numbers in lines}
    (nodes, accuracy, auc), drawn, of_all = (found[way] for way in ("labor", "neighbor", "all"))
    assert nodes < 0.9 * drawn[0] < 0.9 * of_all[0], told
    assert of_all[1] > 0.75 and of_all[2] > 0.6, f"the baseline has not learned: {told}"
    for other in (drawn, of_all):
        assert accuracy > other[1] - 0.06 and auc > other[2] - 0.06, told
