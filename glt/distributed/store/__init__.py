"""Rows of distributed tensors on the servers that keep them."""
