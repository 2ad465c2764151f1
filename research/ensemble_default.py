"""Run the study of the ensemble's default: `python research/ensemble_default.py --scale smoke`. What it is about is in ensemble_default/README.md."""

from cells import main
from ensemble_default.study import STUDY

main(STUDY)
