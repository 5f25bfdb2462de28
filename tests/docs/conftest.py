"""The programs of docs/hooks, which mkdocs imports from their folder, importable for the tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs" / "hooks"))
