"""What a penalty costs and how good it is: every way of ours and of others, in one run."""
