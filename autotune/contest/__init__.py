"""What wins: candidates, their races, and the decisions that come of them."""
