"""The cost model of one layout as a compiled scalar kernel."""
