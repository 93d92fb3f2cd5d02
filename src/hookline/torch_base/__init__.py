"""What both levels need of torch."""
