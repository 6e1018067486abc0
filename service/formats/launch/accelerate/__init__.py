"""accelerate's document."""
