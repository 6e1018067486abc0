"""Hooks of schedulers and launchers, which check each job as it is submitted.

A hook never stands in a job's way: on any error, and once its time is up, the job goes on as it
was. Only verdicts that the administrator lists under `enforce` refuse one.
"""
