"""Run the study of posteriors: `python research/posterior.py --scale smoke`. What it is about is in posterior/README.md."""

from cells import main
from posterior.study import STUDY

main(STUDY)
