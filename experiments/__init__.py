"""The comparison matrix: what to run, the supervisor that runs a cell, the records, and the report made of them."""
