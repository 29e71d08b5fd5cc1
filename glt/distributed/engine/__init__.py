"""From rows of the input to a message: partitions, samplers, the producer and the sampling processes."""
