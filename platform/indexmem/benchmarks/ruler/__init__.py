"""RULER, generated for any tokenizer: task.py (how a sample gets its length), a file for each family, suite.py."""
