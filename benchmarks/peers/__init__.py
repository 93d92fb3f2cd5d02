"""The same work done by hookline, by torch alone, and by other tools."""
