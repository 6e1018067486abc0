"""Foreign dialects, one a file: readers of other tools' model configs and training logs, writers of
launch configs."""
