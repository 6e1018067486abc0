"""The parts that HTTP needs whatever is asked: errors, JSON, limits, headers, API keys and logs."""
