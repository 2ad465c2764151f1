"""The paper, figure by figure: each of its items beside what is stored of ours, on one page. Reads tables, runs nothing."""

from ctld_lab.paper.page import items, write

__all__ = ["items", "write"]
