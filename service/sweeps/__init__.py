"""Sweeps: many questions as one job, which is kept in the database and computed beside requests.
An *item* is one of the questions."""
