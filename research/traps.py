"""Run the study of bad minima: `python research/traps.py --scale smoke`. What it is about is in traps/README.md."""

from cells import main
from traps.study import STUDY

main(STUDY)
