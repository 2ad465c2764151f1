"""What the sampler does where the answer is known: runs without a network."""
