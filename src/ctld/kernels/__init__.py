"""Whole steps in one pass over memory, one file per kind of device; `ctld.dynamics` says what they compute."""
