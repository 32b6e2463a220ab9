"""Text that every file, table and tokenizer takes."""

from __future__ import annotations

# What JSON can write and UTF-8 cannot: a lone surrogate.
HALF_A_CHARACTER = "half a character, a \\uD800 to \\uDFFF without its other half; mend or delete it"


def well_formed(text: str) -> str:
    """`text` with U+FFFD for each half of a character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
