"""`python -m shardwright`, which is the command line."""

from shardwright.cli.main import app

app(prog_name="shardwright")
