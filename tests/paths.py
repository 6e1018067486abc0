"""Where the tests find the repository, and the real files that lie beside some checkouts of it."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"
"""Real configs and logs, which the repository does not hold: tests that need them skip where the
folder is absent."""
