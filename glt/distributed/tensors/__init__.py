"""Rows that servers keep: tensors, embeddings and their optimizers."""
