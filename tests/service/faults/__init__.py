"""What is cut, killed, frozen or filled beneath a running service, and what must hold after it."""
