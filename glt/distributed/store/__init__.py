"""What servers keep for trainers beside the graph: named tensors, and where trainers meet."""
