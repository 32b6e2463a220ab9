"""The one exception for mistakes a user can correct."""


class UserError(ValueError):
    """A mistake in what the user wrote or pointed at.

    The message says what is wrong, what was expected, and what to type. Commands print it without a traceback and
    exit with code 2, before Ray starts or a GPU is taken.
    """
