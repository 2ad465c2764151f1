"""Run the study of the default: `python research/ensemble_default.py --scale smoke`. See ensemble_default/README.md."""

from cells import main
from ensemble_default.study import STUDY

main(STUDY)
