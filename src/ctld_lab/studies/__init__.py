"""One short file per figure, table or question: what is varied, what is tuned, what is fixed."""
