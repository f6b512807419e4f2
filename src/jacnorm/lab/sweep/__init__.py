"""Many runs: the experiment, the processes that train, and the state on disk."""
