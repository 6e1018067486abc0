"""Launch configurations of training frameworks, which are read and written.

A *job* is a layout that is to be launched with a framework, and a *format* is one framework's way
of being told it. A *reading* is what a text that launches a job says, in the fields of a request.
"""
