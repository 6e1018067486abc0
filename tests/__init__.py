"""The tests. They start processes by the score."""

import os
import sys

# Containers often forbid bytecode, for images that stay small. Each process would then compile the
# same sources anew, which takes three seconds of each, and pytest its tests in each worker.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
