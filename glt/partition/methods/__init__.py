"""Which partition a node goes to: random, by frequency, by adjacency (Fennel), METIS, or as the caller says."""
