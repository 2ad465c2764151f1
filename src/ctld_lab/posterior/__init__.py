"""Real posteriors of small networks: how near samplers come to a long NUTS run, and what they predict on UCI's data."""
