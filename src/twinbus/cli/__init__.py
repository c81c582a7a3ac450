"""The command line: parses, prints, and leaves the work to the other packages."""
