"""What hooks cost, measured as differences and ratios inside one run."""
