"""Runs of the sampler where the answer is known: no network, no data."""
