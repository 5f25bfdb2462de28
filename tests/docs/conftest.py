"""What lies outside of the package, importable for the tests: the hooks of mkdocs, and the benchmarks."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "docs" / "hooks"), str(ROOT)]
