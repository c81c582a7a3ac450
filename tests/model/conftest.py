"""Lets the model keep its journal on the store tests' disk in memory."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "store"))
