"""Problems with bad minima whose global minimum is known, and who finds it: `ctld run traps`."""
