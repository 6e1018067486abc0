"""Formats of other tools, one a folder: Hugging Face configs, training logs, shell scripts, job
descriptions, launch configurations, benchmark outputs and tables of published runs."""
