"""The language of the shell in which people keep launch commands, read and never run."""
