"""RULER tasks, generated for any tokenizer: niah.py (what a sample says), haystack.py (filler), fit.py (length)."""
