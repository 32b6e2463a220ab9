"""The engine inside transformers' own `generate`: a cache that evicts, reads latent memory, and needs nothing else.

1. `index_mem_cache.py`: what users make and pass on as `past_key_values`.
2. `passes.py`: hooks that lend a model our attention while it runs over such a cache.
3. `first_pass.py`: a batch's contexts are read, scored and compressed.
4. `held_rows.py`: everything after goes through the engine's ragged cache.
"""
