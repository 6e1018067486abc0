"""The language of the shell in which people keep launch commands, read and never run.

A *text* is what was pasted: a command line, its arguments alone, or a script. `interpreter` follows
its statements, `reading` returns the commands that they start, and `command` picks the one that
trains.
"""
