"""What makes numbers trustworthy: what may go in, what was verified, and when it is verified again."""
