"""Work in bulk (L4): dead letters repaired and sent again, backlogs drained, export and load."""
