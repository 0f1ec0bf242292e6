"""Ways to read the rows of pages."""
