"""Trains the testbed: a small language model that retrieves, on which indexmem compares eviction methods."""
