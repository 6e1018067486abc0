"""Hooks of Slurm: a filter of sbatch, a wrapper around it, a task prolog and an epilog."""
