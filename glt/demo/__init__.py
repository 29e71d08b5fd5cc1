"""The main job, end to end: partition a graph, start samplers, train GraphSAGE with one DDP trainer per partition.

``glt demo`` and ``examples/train_sage_distributed.py`` are two doors to it. ``trainer.py`` is the part to copy.
"""
