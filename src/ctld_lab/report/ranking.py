"""Who is best, who ties with it, and whether that is the paper's order: sentences made from rows."""

from collections.abc import Mapping, Sequence

from ctld_lab.report.paper import ordered_pairs
from ctld_lab.report.statistics import BEST, HIGHER, LOWER, TIE, UNCLEAR, UNKNOWN, paired_difference, word
from ctld_lab.report.tables import Row
from ctld_lab.report.wording import counted, listed, show, show_estimate


def verdict(rows: Sequence[Row], metric: str, *, name: str, unit: str = "", brief: bool = False) -> str:
    """Of rows that compete; `name` is the metric in words. Brief: without what is the same for every metric."""
    finished = [row for row in rows if row.estimate(metric).count and not row.diverged]
    unit = f" {unit}" if unit else ""
    sentences = []
    best = next((row for row in finished if row.marks.get(metric) == BEST), None)
    if best:
        found = best.estimate(metric)
        ties = [row.title for row in finished if row.marks.get(metric) == TIE]
        open_cases = any(row.marks.get(metric) == UNCLEAR for row in finished)
        lead = f"{best.title} has the lowest {name}, {show_estimate(found)}{unit} ({counted(found.count, 'seed')})"
        if ties:
            sentences.append(f"{lead}, and {listed(ties)} {'ties' if len(ties) == 1 else 'tie'} with it.")
        else:
            sentences.append(f"{lead}." if open_cases else f"{lead}, and no other method ties with it.")
        tempered = next((row for row in finished if row.method == "ctld"), None)
        if tempered and tempered.marks.get(metric) == "":
            difference = paired_difference(tempered.values[metric], best.values[metric])
            sentences.append(f"CTLD is worse than {best.title} by {show_estimate(difference)}{unit}.")
    elif finished:
        lowest = min(finished, key=lambda row: row.estimate(metric).mean)
        value = show(lowest.estimate(metric).mean)
        if len(finished) == 1:
            sentences.append(f"Only {lowest.title} is finished, at {value}{unit}: there is nothing to compare it with.")
        else:
            sentences.append(
                f"{lowest.title} has the lowest {name}, {value}{unit}, but with one seed nothing is known about chance: "
                "neither a winner nor a tie can be named."
            )
    else:
        sentences.append("No run is finished, so nothing can be said yet.")
    unclear = [row.title for row in finished if row.marks.get(metric) == UNCLEAR]
    if unclear:
        sentences.append(f"Of {listed(unclear)} the seeds differ too much to tell.")
    if brief:
        return " ".join(sentences)
    few = [row.title for row in finished if row.marks.get(metric) == UNKNOWN]
    if few:
        sentences.append(f"Too few seeds are finished to compare {listed(few)} with the best.")
    sentences += [
        f"{row.title} diverged in {row.diverged} of {counted(row.done, 'seed')}." for row in rows if row.diverged
    ]
    missing = [row.title for row in rows if not row.done]
    if missing and finished:
        sentences.append(f"{listed(missing)} {'has' if len(missing) == 1 else 'have'} no finished run.")
    return " ".join(sentences)


def agreement(rows: Sequence[Row], metric: str, printed: Mapping[str, str], *, name: str = "") -> str:
    """How many of the paper's ordered pairs come out the same way here, by paired differences over seeds.

    `name` is the metric in words, where the sentence before is about another.
    """
    by_method = {row.method: row for row in rows if row.done}
    pairs = ordered_pairs(printed, list(by_method))
    same, reversed_pairs, ties, unknown = 0, [], 0, 0
    for better, worse in pairs:
        one, other = by_method[better], by_method[worse]
        if one.diverged or other.diverged:
            # Whoever diverged lost; two that did say nothing.
            same += not one.diverged
            if one.diverged and not other.diverged:
                reversed_pairs.append((better, worse))
            unknown += one.diverged > 0 and other.diverged > 0
            continue
        said = word(paired_difference(one.values.get(metric, {}), other.values.get(metric, {})))
        unknown += said == ""
        ties += said == TIE
        same += said == LOWER
        if said == HIGHER:
            reversed_pairs.append((better, worse))
    if not pairs or unknown == len(pairs):
        return ""
    parts = [f"{same} come{'s' if same == 1 else ''} out the same way here{f' in {name}' if name else ''}"]
    around = f"{len(reversed_pairs)} the other way round"
    if reversed_pairs:
        names = [f"{by_method[worse].title} before {by_method[better].title}" for better, worse in reversed_pairs]
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        around += f" ({', '.join(names[:4])}{more})"
    parts += [around, f"{ties} {'is a tie' if ties == 1 else 'are ties'}"]
    if unknown:
        parts.append(f"{unknown} cannot be told")
    return f"Of the {counted(len(pairs), 'pair')} of methods that the paper puts in order, {listed(parts)}."
