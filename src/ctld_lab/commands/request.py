"""A `Request` from what was typed. Whatever is wrong with it is refused here, before any work."""

import os
import shlex
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

from ctld_lab.commands import Refusal
from ctld_lab.commands.options import unknown
from ctld_lab.studies.study import Request, Study

MOST_SEEDS = 1000
PATHS = ("tuned", "text", "data_dir")


@dataclass(frozen=True)
class Order:
    """An order to `ctld run`, as typed, its machinery aside; kept as JSON in study.json, for `ctld resume`."""

    study: str
    scale: str
    methods: str | None = None
    seeds: str | None = None
    trials: int | None = None
    tuned: Path | None = None
    data: str | None = None
    text: Path | None = None
    data_dir: Path | None = None
    autocast: bool = False
    report: bool = True
    tensorboard: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return what differs from the defaults, with whole paths."""
        return {
            field.name: str(value.absolute()) if isinstance(value, Path) else value
            for field in fields(self)
            if (value := getattr(self, field.name)) != field.default
        }

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Self:
        """Return the order that `to_json` stored; raise a TypeError for anything else."""
        kinds = {"trials": int, "autocast": bool, "report": bool, "tensorboard": bool}
        for name, value in stored.items():
            if type(value) is not kinds.get(name, str):
                raise TypeError(f"{name} = {value!r}")
        return cls(**stored | {name: Path(stored[name]) for name in PATHS if name in stored})

    def command(self) -> str:
        """Return what to type for the same numbers."""
        study = str(Path(self.study).absolute()) if is_file(self.study) else self.study
        words = ["ctld", "run", study]
        for name, value in self.to_json().items():
            if name not in ("study", "report", "tensorboard"):
                option = f"--{name.replace('_', '-')}"
                words += [option] if value is True else [option, str(value)]
        return shlex.join(words)


def is_file(study: str) -> bool:
    """True if a study of the user's own is meant, rather than one by its name."""
    return study.endswith(".py")


def find_study(name: str) -> Study:
    from ctld_lab import studies

    if not is_file(name):
        if name in studies.MOVED:
            raise Refusal(
                f"the study {name} left the package. In a clone of the repository, run: {studies.MOVED[name]}"
            )
        if name not in studies.names():
            raise Refusal(unknown("study", name, studies.names()) + "; or a file of your own, FILE.py")
        return studies.get(name)
    if not Path(name).is_file():
        raise Refusal(f"there is no file {name}; a study of your own is a Python file with STUDY = Study(...)")
    try:
        return studies.load(Path(name))
    except ValueError as error:
        raise Refusal(str(error)) from error


def default_scale(study: str) -> str:
    """laptop; of a study of the user's own that has no such scale, its first."""
    scales = list(find_study(study).scales) if is_file(study) else []
    return "laptop" if not scales or "laptop" in scales else scales[0]


def build(order: Order, study: Study) -> Request:
    """Return the request, with data found and identified."""
    if order.scale not in study.scales:
        raise Refusal(unknown("scale", order.scale, study.scales))
    settings = dict(study.scales[order.scale])
    if "trials" not in settings and (order.trials is not None or order.tuned is not None):
        raise Refusal(f"the study {study.name} tunes nothing; leave --trials and --tuned out")
    if order.trials is not None:
        if order.tuned is not None:
            raise Refusal(f"--tuned takes trials of a report, --trials {order.trials} runs others; give one of the two")
        if order.trials == 0 and "learning_rates" not in study.paper:
            raise Refusal(f"--trials 0: the paper has no settings for the study {study.name}; give 1 or more")
        settings["trials"] = order.trials
    if order.autocast:
        settings["autocast"] = "bfloat16"  # of all runs: methods are not compared across number formats
    seeds = parse_seeds(order.seeds or str(settings.get("seeds", 1)))
    methods = parse_methods(order.methods, study)
    use_data_dir(order.data_dir)
    for name in study.also_reads(settings):
        _see(name)
    found = find_data(order, study, settings.get("data"))
    stored = None
    if order.tuned is not None:
        from ctld_lab.tuning import stored_trials

        stored = stored_trials(order.tuned, study.name, order.scale, found)
    request = Request(order.scale, methods, seeds, found, settings, stored)
    if reason := study.refuses(request):
        raise Refusal(reason)
    return request


def parse_seeds(text: str) -> list[int]:
    """ "3" is how many: 0, 1, 2. "4,7" are seeds themselves, and so is "4,"."""
    try:
        numbers = [int(word) for word in text.removesuffix(",").split(",")]
    except ValueError:
        raise Refusal(f'--seeds {text} is neither a count, such as 3, nor a list of seeds, such as "0,1,2"') from None
    if "," not in text:
        if not 1 <= numbers[0] <= MOST_SEEDS:
            raise Refusal(f"--seeds {text}: give at least 1 and at most {MOST_SEEDS} seeds")
        return list(range(numbers[0]))
    if min(numbers) < 0 or max(numbers) >= 2**31 or len(set(numbers)) < len(numbers):
        raise Refusal(f"--seeds {text}: give each seed once, from 0 to below 2^31")
    return numbers


def parse_methods(text: str | None, study: Study) -> list[str]:
    if text is None:
        return list(study.methods)
    known = [*study.methods, *study.optional_methods]
    if not known:
        raise Refusal(f"the study {study.name} is not about methods; leave --methods out")
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            raise Refusal(unknown("method", name, known))
        if names.count(name) > 1:
            raise Refusal(f"--methods {text}: {name} is there more than once")
    return names


def find_data(order: Order, study: Study, default: str | None) -> dict[str, Any]:
    """Name and SHA-256 of what the runs will load; that it is there is seen now, and not by each run for itself."""
    from ctld_lab import data

    if order.data is not None and order.text is not None:
        raise Refusal("--data and --text are two sources of data; give one")
    if (order.text is not None and study.takes != "text") or (order.data is not None and study.takes is None):
        raise Refusal(f"the study {study.name} takes {study.takes or 'no data'}; leave --data and --text out")
    if study.takes is None:
        return {}
    if order.text is not None:
        path = order.text.absolute()
        return {"name": path.name, "sha256": data.identify(path), "path": str(path)}
    name = order.data or str(default)
    fitting = [row.name for row in data.DATASETS.values() if row.kind == study.takes]
    if name not in fitting:
        raise Refusal(f"the study {study.name} takes {study.takes}: " + unknown("such data set", name, fitting))
    try:
        _see(name)
    except data.DataError as missing:
        instead = next(row for row in fitting if data.DATASETS[row].embedded)
        raise data.DataError(f"{missing}\nOr, with what comes installed: --data {instead}") from None
    return {"name": name, "sha256": data.identify(name)}


def _see(name: str) -> None:
    """Raise an error unless the files of a data set are there."""
    from ctld_lab.data import DATASETS
    from ctld_lab.data.locate import find

    for file in DATASETS[name].files:
        find(DATASETS[name], file)


def use_data_dir(folder: Path | None) -> None:
    """The runs find it in the environment, whichever process they are in."""
    if folder is not None:
        if not folder.is_dir():
            raise Refusal(f"--data-dir {folder} is not a directory; make it, or give another")
        os.environ["CTLD_DATA"] = str(folder.absolute())
