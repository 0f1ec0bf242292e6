"""Ways to read the SWA pages of full pages and clear the rows."""
