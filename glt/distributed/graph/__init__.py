"""The graph as a whole: DistGraph, splits, data loaders in the manner of DGL, inference by layers."""
