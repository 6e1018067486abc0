"""The cost of a layout: seconds and bytes, term by term."""
