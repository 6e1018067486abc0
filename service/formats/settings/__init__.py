"""The settings of frameworks: which there are, what each means, and what a launch gives.

Every setting of a launch is of one of four kinds. It is **read**, because it changes the job; it is
**of no account**, because it changes neither time nor memory; it is **not described**, because the
framework takes it and the cost model does not know what it does; or the framework does not have
it. The first three stand in the table of a release (`field_table`), and `settings` sorts what was
given by them.
"""
