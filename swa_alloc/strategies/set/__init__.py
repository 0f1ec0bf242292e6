"""Ways to give rows of the table their SWA slots."""
