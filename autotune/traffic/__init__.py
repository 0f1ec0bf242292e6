"""What is timed: a workload's calls, and the sizes picked from them."""
