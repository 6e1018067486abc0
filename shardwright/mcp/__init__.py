"""The tools of the service for agents, by the Model Context Protocol."""
