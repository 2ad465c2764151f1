"""Definition of a study: what is varied, tuned and fixed, its size at each scale, and the runs it asks for."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ctld_lab.records import StudyDirectory

SCALES = ("smoke", "laptop", "paper")


@dataclass(frozen=True)
class Run:
    """One run: the name of its directory, and everything that decides its numbers (JSON)."""

    name: str
    config: dict[str, Any]


@dataclass(frozen=True)
class Request:
    """A study at a scale, as the user asked for it."""

    scale: str
    methods: Sequence[str]
    seeds: Sequence[int]
    data: dict[str, Any]
    """name and sha256; path too, for a text of the user's; empty where the study needs no data."""
    settings: dict[str, Any]
    """Those of the scale."""
    stored_trials: Mapping[str, Sequence[Any]] | None = None
    """By search, what a published report holds; None where trials are to be run."""

    def final(self, study: str, name: str, kind: str, **config: Any) -> Run:
        """A run that counts, of this study."""
        return Run(name, {"kind": kind, "study": study, "scale": self.scale, "role": "final", **config})


@dataclass(frozen=True)
class Study:
    """One figure or table of the paper."""

    name: str
    title: str
    figure: str
    """Where it is in the paper."""
    varied: str
    tuned: str
    fixed: str
    methods: Sequence[str]
    """Those of the paper; `--methods` chooses others. Empty where the study is not about methods."""
    scales: Mapping[str, Mapping[str, Any]]
    """Settings by scale; `data` (the default data set) and `seeds` (how many) are among them."""
    plan: Callable[[Request, StudyDirectory], Iterator[list[Run]]]
    """Yields lists of runs. When it is asked for the next list, those before have been executed and can be read."""
    takes: Literal["images", "text"] | None = None
    """The kind of data it is about."""
    paper: Mapping[str, Any] = field(default_factory=dict)
    """What the paper reports, stored beside the results."""
    optional_methods: Sequence[str] = ()
    """What `--methods` may name besides `methods`."""
    also_reads: Callable[[Mapping[str, Any]], Sequence[str]] = lambda settings: ()
    """Data sets besides the one that the command names, by the settings of the scale."""
    refuses: Callable[[Request], str | None] = lambda request: None
    """Why a request cannot be carried out with the data that it names, if so; asked before any run."""
    titles: Mapping[str, str] = field(default_factory=dict)
    """Of methods that are more than an optimizer."""
    workloads: Mapping[str, Callable[[dict[str, Any]], Any]] = field(default_factory=dict)
    """Of a study of one's own: what `workload` of a run may name besides ours, made from the run's configuration."""
