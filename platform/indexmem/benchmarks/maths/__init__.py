"""Competition mathematics: long answers to short questions, for budgets that hold while decoding."""
