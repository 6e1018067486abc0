"""The wire: what requests and answers look like, one noun a file."""
