"""Jobs described by YAML objects, Kubernetes, SkyPilot or recipes, as commands."""
