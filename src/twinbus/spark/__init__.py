"""Spark: the `servicebus` data source, and the jobs over what was captured."""
