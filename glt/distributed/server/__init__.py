"""Partitions as a service: the server, its sampling processes, sessions and metrics, and its clients."""
