"""What the command line does besides experiments."""
