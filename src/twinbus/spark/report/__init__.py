"""Reports for people: a page with charts, and tables for the terminal.

The tables of a job go in as plain rows. Only `making` needs Spark; the rest knows nothing of
where rows came from.
"""
