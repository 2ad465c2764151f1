"""Run the study of the default: `python research/robustness.py --scale smoke`. See robustness/README.md."""

from cells import main
from robustness.study import STUDY

main(STUDY)
