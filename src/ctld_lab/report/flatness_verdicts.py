"""Does the paper's hypothesis hold? Verdicts by measure, and sentences made of them."""

from collections.abc import Sequence

from ctld_lab.report.correlation import Association, association
from ctld_lab.report.flatness_records import TEST, Flatness, Group
from ctld_lab.report.sections import variant_title
from ctld_lab.report.statistics import HIGHER, LOWER, TIE, Estimate, paired_difference, word
from ctld_lab.report.wording import counted, listed

BASE = "sgd"
HOLDS, FAILS, OPEN, UNKNOWN = "holds", "does not hold", "is undecided", "cannot be told"


def variants(rows: Sequence[Group]) -> list[str]:
    return list(dict.fromkeys(group.variant for group in rows))


def summary(parts: Sequence[Flatness]) -> list[str]:
    """Both claims counted over all, then a paragraph for each study and setting."""
    explored: list[str] = []
    associated: list[str] = []
    paragraphs = []
    decays = []
    for part in parts:
        if any(_other_decay(part, variant) for variant in variants(part.groups)):
            decays.append(part.title)
        for variant in variants(part.groups):
            rows = [group for group in part.groups if group.variant == variant]
            explored += [verdict for group in _tempered(rows) for verdict in flatter(part, rows, group).values()]
            associated += [goes_with(found) for found in associations(part, rows, TEST).values()]
            paragraphs.append(_paragraph(part, rows, variant))
    return [_lead(explored, associated, decays), *paragraphs]


def _other_decay(part: Flatness, variant: str) -> bool:
    """Was what is called flatter or sharper than SGD-M trained with another weight decay?"""
    rows = [group for group in part.groups if group.variant == variant]
    base = next((row for row in rows if row.method == BASE), None)
    return base is not None and any(group.weight_decay != base.weight_decay for group in _tempered(rows))


def _tempered(rows: Sequence[Group]) -> list[Group]:
    """CTLD; where a study calls it otherwise, all that are made with it."""
    return [group for group in rows if group.method == "ctld"] or [group for group in rows if group.tempered]


def difference(rows: Sequence[Group], group: Group, measure: str) -> Estimate:
    """From SGD-M, seed by seed."""
    base = next((row for row in rows if row.method == BASE), None)
    return paired_difference(group.by_seed(measure), base.by_seed(measure) if base else {})


def flatter(part: Flatness, rows: Sequence[Group], group: Group) -> dict[str, str]:
    """Measure → is `group` flatter than SGD-M?"""
    verdicts = {}
    for measure in part.measures:
        verdicts[measure] = {LOWER: HOLDS, HIGHER: FAILS, TIE: OPEN, "": UNKNOWN}[
            word(difference(rows, group, measure))
        ]
    return verdicts


def associations(part: Flatness, rows: Sequence[Group], quality: str) -> dict[str, Association | None]:
    return {
        measure: association([(group.by_seed(measure), group.by_seed(quality)) for group in rows])
        for measure in part.measures
    }


def goes_with(found: Association | None) -> str:
    if found is None or found.methods < 4:  # 3! orders, the least share of them is a sixth
        return UNKNOWN
    return OPEN if not found.beyond_chance else HOLDS if found.rho > 0 else FAILS


def _paragraph(part: Flatness, rows: Sequence[Group], variant: str) -> str:
    words = [f"{part.title}, {variant_title(variant).lower()}."]
    for group in _tempered(rows):
        reasons = {
            FAILS: "sharper",
            OPEN: "the interval of the paired difference holds zero",
            UNKNOWN: "fewer than two seeds of both",
        }
        sentence = _sorted_out(flatter(part, rows, group), reasons)
        words.append(f"That {group.title} ends in flatter minima than SGD-M {sentence}.")
    if not _tempered(rows):
        words.append("CTLD is not among the runs that were measured.")
    by_measure = associations(part, rows, TEST)
    known = next((found for found in by_measure.values() if found is not None), None)
    over = f", over {counted(known.runs, 'run')} of {counted(known.methods, 'method')}," if known else ""
    reasons = {
        FAILS: "sharper ones do",
        OPEN: "the correlation may be chance",
        UNKNOWN: "fewer than four methods share a seed",
    }
    sentence = _sorted_out({measure: goes_with(found) for measure, found in by_measure.items()}, reasons)
    words.append(f"That flatter models have a lower test loss{over} {sentence}.")
    return " ".join(words)


def _sorted_out(verdicts: dict[str, str], reasons: dict[str, str]) -> str:
    """holds by trace; does not hold by sharpness (sharper); is undecided by …"""
    parts = []
    for verdict in (HOLDS, FAILS, OPEN, UNKNOWN):
        names = [measure for measure, found in verdicts.items() if found == verdict]
        if names:
            one_and_all = "every measure" if verdict in (HOLDS, OPEN) else "any measure"
            by = one_and_all if len(names) == len(verdicts) > 1 else listed(names)
            reason = f" ({reasons[verdict]})" if verdict in reasons else ""
            parts.append(f"{verdict} by {by}{reason}")
    return "; ".join(parts)


def _lead(explored: list[str], associated: list[str], decays: list[str]) -> str:
    """Counted over studies, settings and measures."""
    sentences = [
        "The paper explains its results by flat minima: exploration is to find them, and they are to generalise better."
    ]
    for found, claim in (
        (explored, "CTLD ends in flatter minima than SGD-M"),
        (associated, "flatter models have a lower test loss"),
    ):
        if not found:
            continue
        counts = [
            counted(found.count(verdict), *words)
            for verdict, words in (
                (HOLDS, ("agrees", "agree")),
                (FAILS, ("says the opposite", "say the opposite")),
                (OPEN, ("decides nothing", "decide nothing")),
                (UNKNOWN, ("has too few runs", "have too few runs")),
            )
            if found.count(verdict)
        ]
        sentences.append(f"That {claim}: of {counted(len(found), 'reading')}, {listed(counts)}.")
        if found is explored and decays:
            sentences.append(
                f"In {listed(decays)} SGD-M has another weight decay than CTLD, which by itself changes how flat a minimum is."
            )
    sentences.append("Readings of one study are of the same networks, hence not independent.")
    return " ".join(sentences)
