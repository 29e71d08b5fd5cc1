"""A description that is guessed from tables."""
