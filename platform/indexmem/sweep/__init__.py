"""Searches for good settings on Ray Tune."""

from indexmem.extras import need

need("ray", "ray", "optuna")
