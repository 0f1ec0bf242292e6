"""Measures the strategies of swa_alloc on a real device and saves the winners as a profile."""
