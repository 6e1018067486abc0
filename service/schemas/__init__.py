"""The wire schemas: what requests and answers look like. One noun a file."""
