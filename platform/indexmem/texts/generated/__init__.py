"""Texts that are made, not fetched: values.py (what is drawn), layouts.py and records.py (lists of it), sentences.py
and facts.py (it in prose). They are drawn from fixed seeds by means that give the same on every platform and Python.
"""
