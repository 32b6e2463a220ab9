"""Benchmarks whose rows somebody has published: each set is a prompt, a limit and a score; `suite.py` does the rest."""
