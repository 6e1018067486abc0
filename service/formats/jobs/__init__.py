"""Jobs described by YAML objects, of Kubernetes, SkyPilot or recipes, as the commands they start."""
