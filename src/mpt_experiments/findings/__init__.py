"""What this book finds beyond the paper."""
