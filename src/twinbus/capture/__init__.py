"""The journal as Parquet, while the broker runs: complete, each record exactly once (L1)."""
