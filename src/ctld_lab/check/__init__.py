"""`ctld check`: sample what is known exactly with a user's own settings, and compare.

`targets` are the potentials and their answers, `run` samples one of them with CTLD, `verdicts` judges what came out.
"""
