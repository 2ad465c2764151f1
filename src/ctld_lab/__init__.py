"""The laboratory: everything that runs experiments with `ctld`. It imports ctld; ctld never imports it."""
