"""Keys of MaxText."""
