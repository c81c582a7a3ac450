"""The jobs over captures (L2), each a module of three functions over DataFrames:

- `partial(rows)` — what any set of capture files says, as a small table. Order and grouping
  of the files do not matter.
- `merge(partials)` — several such tables as one. It may be merged again.
- `report(merged)` — the tables for the reader, by name.

In a batch: `report(merge(partial(rows)))`. In a stream `follow` keeps what `merge` gave last,
so that files may come late or in any order and the answer is that of the batch.
`catalogue` lists the jobs by name.
"""
