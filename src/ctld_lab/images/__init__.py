"""A picture fitted by Gaussians: traps in a real problem."""
