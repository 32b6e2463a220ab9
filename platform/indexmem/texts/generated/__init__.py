"""Texts that are made, not fetched: values.py (what is drawn), layouts.py and records.py (lists of it), facts.py (it in
prose), tables.yaml (words, themes of lists, stories). They are drawn from fixed seeds by means that give the same on
every platform and Python.
"""
