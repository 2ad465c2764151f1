"""Judge tables of differences: Holm's correction within each family, then one of the four words of `ctld_lab.statistics`.

ahead, behind    the corrected p is below 0.05
tie              the 95 % interval lies within the margin
undecided        neither
"""

import pandas as pd

from ctld_lab.statistics import AHEAD, BEHIND, TIE, UNDECIDED, holm

LEVEL = 0.05


def judged(rows: pd.DataFrame, margin: float, families: pd.Series | None = None) -> pd.DataFrame:
    """Add `corrected_p` and `verdict` to rows of `difference`, `low`, `high` and `p`; a higher difference is better.

    Rows of one family were planned together and are corrected together; without `families` all rows are one.
    """
    corrected: dict[int, float] = {}
    for _, family in rows.groupby(pd.Series(0, rows.index) if families is None else families):
        corrected |= holm(family["p"].to_dict())
    p = pd.Series(corrected).reindex(rows.index)
    words = pd.Series(UNDECIDED, rows.index)
    words[(rows["low"] > -margin) & (rows["high"] < margin)] = TIE
    words[p < LEVEL] = rows["difference"].gt(0).map({True: AHEAD, False: BEHIND})
    return rows.assign(corrected_p=p, verdict=words)


def counted(verdicts: pd.Series) -> str:
    """Return how many there are of each verdict: "4 ahead, 3 behind, 2 ties"."""
    counts = {word: int((verdicts == word).sum()) for word in (AHEAD, BEHIND, TIE, UNDECIDED)}
    return ", ".join(f"{n} {word}{'s' * (word == TIE and n > 1)}" for word, n in counts.items() if n)
