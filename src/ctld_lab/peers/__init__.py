"""Cycles beside today's alternatives, from their own packages: what each makes of the same number of gradients."""
