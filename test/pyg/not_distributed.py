"""Tests of PyG's that distributed loaders cannot be asked, and why."""

NOT_ASKED = {
    "test_zip_loader": "ZipLoader draws the seeds and has its loaders sample them, by their collate_fn: distributed "
    "loaders sample ahead, around seeds that they know from the start. zip(loader1, loader2) is what remains of it",
    "test_neighbor_loader_with_tensor_frame": "has a TensorFrame of edges, which is not partitioned; of nodes it is",
}
"""They fail, all cases of them: one that passes is reported, to be struck off."""

NO_LOADER = {
    "test_custom_hetero_neighbor_loader_duplicate": "samples from stores alone, which are not partitioned",
    "test_dataloader_with_imbalanced_sampler": "of PyG's DataLoader",
    "test_in_memory_dataset_imbalanced_sampler": "of PyG's DataLoader",
    "test_prefetch_loader": "prefetches from a list",
    "test_trim_to_layer_basic": "makes its batch by hand",
    "test_trim_to_layer_hetero": "makes its batch by hand",
}
"""They pass without a batch of a distributed loader, whatever the mode."""
