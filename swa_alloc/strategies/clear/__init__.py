"""Ways to set rows of the table to 0."""
