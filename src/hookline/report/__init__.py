"""Reports: each reads what was recorded and writes one form of it. They know no torch."""
