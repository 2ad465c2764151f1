"""Run the study of peers: `python research/peers.py --scale smoke`. What it is about is in peers/README.md."""

from cells import main
from peers.study import STUDY

main(STUDY)
