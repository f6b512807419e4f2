"""Many runs: what an experiment asks for, who runs it, and what is known of it on disk."""
