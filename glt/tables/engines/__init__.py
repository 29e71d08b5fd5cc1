"""What joins, sorts and writes: one plan, carried out by DuckDB or Spark."""
