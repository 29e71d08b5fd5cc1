"""The loaders of a distributed job, and where each of them samples."""
