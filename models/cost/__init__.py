"""What a layout takes: seconds and bytes, term by term."""
