"""What HTTP needs, whatever is asked: errors, JSON, limits, headers, keys and logs."""
