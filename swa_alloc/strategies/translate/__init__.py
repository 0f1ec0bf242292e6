"""Ways to read the SWA slots of full slots; an index of -1 reads the sentinel."""
