"""Makes the report's row generator importable here."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "report"))
