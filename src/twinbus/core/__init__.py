"""What every layer may know: names and paths, limits, units, the one error table."""
