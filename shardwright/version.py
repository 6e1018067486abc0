"""The version of the client, which is that of the service beside it."""

VERSION = "0.1.0"
