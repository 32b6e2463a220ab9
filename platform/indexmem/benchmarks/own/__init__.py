"""Your own data as a benchmark, without code: one JSON object a line."""
