"""Files of tables, their columns as values, and the numbers that features become."""
