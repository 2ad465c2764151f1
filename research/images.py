"""Run the study of photographs: `python research/images.py --scale smoke`. What it is about is in images/README.md."""

from cells import main
from images.study import STUDY

main(STUDY)
