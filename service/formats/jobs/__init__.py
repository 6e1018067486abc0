"""Jobs described by YAML objects, Kubernetes, SkyPilot or recipes, as commands.

`opening` tells which object a text is. Each other module turns one kind into a `JobText`: a command
of the shell, its variables, and a *header*, the machines that it asks for in the words of Slurm.
"""
