"""The command: from a command line to a run folder, a saved profile and a report."""
