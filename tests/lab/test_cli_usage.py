"""How `ctld` is called: help that teaches and comes at once, and refusals that say what would be right, before any work."""

import json
import os
import re
import resource
import shlex
import subprocess
import sys
from pathlib import Path

import matplotlib.font_manager  # noqa: F401  # now, since its first import writes a cache, where a test looks for traces
import pytest
import typer

from ctld_lab import cli, studies
from ctld_lab.commands import Refusal
from ctld_lab.commands.request import Order, build, parse_seeds

FAKES = Path(__file__).parent / "fakes"
COMMANDS = [
    "run",
    "resume",
    "report",
    "list",
    "compare",
    "demo",
    "check",
    "checkpoints",
    "flatness",
    "status",
    "data list",
    "data fetch",
    "data verify",
]


@pytest.fixture(autouse=True)
def _fake_study(fake_study, monkeypatch):
    monkeypatch.delenv("CTLD_DATA", raising=False)


def call(capsys, line):
    """Exit code, standard output and error."""
    with pytest.raises(SystemExit) as leaving:
        cli.main(line.split())
    caught = capsys.readouterr()
    return leaving.value.code, caught.out, caught.err


# ---- help ----


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples_that_would_parse(capsys, command):
    code, out, _ = call(capsys, f"{command} --help")
    assert code == 0
    examples = [line.strip() for line in out.partition("Examples:")[2].splitlines() if line.strip()]
    assert examples
    leaf, words = typer.main.get_command(cli.app), command.split()
    for word in words:
        leaf = leaf.commands[word]
    for example in examples:
        given = shlex.split(example)
        assert given[: 1 + len(words)] == ["ctld", *words]
        leaf.make_context(command, given[1 + len(words) :])  # parses, and runs nothing


def test_top_help(capsys):
    code, out, _ = call(capsys, "--help")
    assert code == 0
    for command in COMMANDS:
        assert re.search(rf"^│ {command.split()[0]} ", out, re.MULTILINE)


def test_nothing_shows_the_help(capsys):
    code, out, err = call(capsys, "")
    assert (code, err) == (2, "")
    assert "Usage: ctld" in out


def test_version(capsys):
    code, out, _ = call(capsys, "--version")
    assert code == 0
    assert re.fullmatch(r"ctld \d+\.\d+\.\d+\n", out)


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["list"], ["report", "nowhere"], ["--version"]])
def test_light_commands_leave_torch_alone(arguments, tmp_path):
    script = (
        "import sys\nfrom ctld_lab.cli import _main\n_main(sys.argv[1:])\n"
        "assert 'torch' not in sys.modules and 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script, *arguments], check=True, capture_output=True, cwd=tmp_path)


def test_help_comes_at_once(tmp_path):
    """About half a second of work: of the processor, since other programs may be at work beside it; the best of three."""

    def used():
        found = resource.getrusage(resource.RUSAGE_CHILDREN)
        return found.ru_utime + found.ru_stime

    seconds = []
    for _ in range(3):
        start = used()
        words = [sys.executable, "-m", "ctld_lab", "--help"]
        done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
        seconds.append(used() - start)
        assert done.returncode == 0
        assert "Usage: ctld" in done.stdout
    assert min(seconds) < 1.0


def test_without_the_extra_it_says_what_to_install(tmp_path):
    script = "import sys\nsys.modules['typer'] = None\nimport ctld_lab.cli"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr == 'the command "ctld" needs typer, which is not installed: pip install "ctld[lab]"\n'


# ---- refusals ----

REFUSED = [
    ("run", "Missing argument 'STUDY'"),
    ("run fak", "did you mean fake?"),
    ("run nothing-like-it", "known: sda"),
    ("run fake --scale smok", "did you mean smoke?"),
    ("run fake --methods good,bettr", "did you mean better?"),
    ("run fake --methods good,good", "more than once"),
    ("run fake --methods ,", "there is no method"),
    ("run fake --seeds 0", "at least 1"),
    ("run fake --seeds -3", "at least 1"),
    ("run fake --seeds 2000", "at most 1000"),
    ("run fake --seeds 0,-1", "from 0"),
    ("run fake --seeds 1,1", "each seed once"),
    ("run fake --seeds many", "neither a count"),
    ("run fake --trials 2", "tunes nothing"),
    ("run fake --workers 0", "'--workers'"),
    ("run fake --workers x", "--workers"),
    ("run fake --threads 0", "'--threads'"),
    ("run fake --engine pol", "'pool'"),
    ("run fake --data mnist", "takes text: there is no such data set"),
    ("run fake --data pydo", "did you mean pydoc?"),
    ("run fake --data pydoc --text x", "give one"),
    ("run fake --data-dir nowhere", "is not a directory"),
    ("run fake --dir file/below", "is not a directory"),
    ("run fake --colour red", "No such option"),
    ("resume nowhere", "neither a study"),
    ("report nowhere", "holds no study"),
    ("status nowhere", "holds no study"),
    ("compare nowhere", "at least two"),
    ("data fetch mnst", "did you mean mnist?"),
    ("data verify mnst", "did you mean mnist?"),
    ("demo --workers 0", "--workers"),
    ("rum", "No such command"),
]


@pytest.mark.parametrize(("line", "words"), REFUSED, ids=[line for line, _ in REFUSED])
def test_refuses_in_one_sentence_and_does_nothing(capsys, line, words, tmp_path):
    (tmp_path / "file").touch()
    code, out, err = call(capsys, line)
    assert (code, out) == (2, "")
    assert err.startswith("ctld: ")
    assert err.count("\n") == 1
    assert words in err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_refuses_a_directory_that_it_may_not_write(capsys, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # chmod would not stop root
    code, _, err = call(capsys, "run fake --scale smoke")
    assert code == 2
    assert "cannot be written" in err


def test_data_that_are_missing_are_told_before_any_work(capsys, tmp_path):
    code, _, err = call(capsys, "run fake --data war-and-peace")
    assert code == 1
    assert "ctld data fetch war-and-peace" in err
    assert not (tmp_path / "runs").exists()


def test_a_text_that_is_too_short(capsys, tmp_path):
    (tmp_path / "short.txt").write_text("short")
    code, _, err = call(capsys, "run fake --text short.txt")
    assert code == 1
    assert "too few to split" in err


# ---- what was typed ----


@pytest.mark.parametrize(("text", "seeds"), [("3", [0, 1, 2]), ("4,7", [4, 7]), ("4,", [4]), (" 1 , 0 ", [1, 0])])
def test_seeds(text, seeds):
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", ",", "1,,2", "1.5", "2147483648,"])
def test_seeds_that_are_none(text):
    with pytest.raises(Refusal):
        parse_seeds(text)


@pytest.mark.parametrize(("study", "trials", "words"), [("ensemble", 0, "give 1 or more")])
def test_trials_that_cannot_be(study, trials, words):
    from importlib import import_module

    module = import_module(study if study == "ensemble" else f"ctld_lab.studies.{study}")
    with pytest.raises(Refusal, match=words):
        build(Order(study, "smoke", trials=trials), module.STUDY)


@pytest.mark.parametrize(
    ("order", "words"),
    [
        (Order("sensitivity", "smoke", tuned=Path("results")), "tunes nothing"),
        (Order("sda", "smoke", trials=2, tuned=Path("results")), "give one of the two"),
    ],
)
def test_stored_trials_that_nobody_asks_for(order, words):
    from importlib import import_module

    with pytest.raises(Refusal, match=words):
        build(order, import_module(f"ctld_lab.studies.{order.study}").STUDY)


def test_trials_replace_those_of_the_scale():
    from ctld_lab.studies.sda import STUDY

    assert build(Order("sda", "smoke", trials=0), STUDY).settings == dict(STUDY.scales["smoke"]) | {"trials": 0}


@pytest.mark.parametrize(
    "order",
    [
        Order("sda", "smoke"),
        Order("charrnn", "paper", methods="sgd,ctld", seeds="4,", trials=0, data="enwik8", autocast=True, report=False),
        Order("sda", "laptop", tuned=Path("/a report"), tensorboard=True),
        Order("charrnn", "laptop", text=Path("/a place/with 'quotes'.txt"), data_dir=Path("/data")),
    ],
)
def test_an_order_is_stored_whole(order):
    assert Order.from_json(json.loads(json.dumps(order.to_json()))) == order


@pytest.mark.parametrize("stored", [{}, {"study": "sda"}, {"study": 3, "scale": "smoke"}, {"dir": "/etc"}])
def test_an_order_that_is_not_ours(stored):
    with pytest.raises(TypeError):
        Order.from_json(stored)


@pytest.mark.parametrize("line", ["run sda --ranks 2", "resume . --ranks 2"])
def test_ranks_say_where_they_went(capsys, line):
    code, _, error = call(capsys, line)
    assert code == 2
    assert "examples/digits_on_ranks.py" in error


# ---- studies that left ----


@pytest.mark.parametrize("study", studies.MOVED)
def test_a_study_that_left_the_package_says_where_it_is(capsys, tmp_path, study):
    code, out, error = call(capsys, f"run {study} --scale smoke")
    assert (code, out) == (2, "")
    assert "In a clone of the repository, run: " in error
    assert f"research/{study}.py" in error
    assert not (tmp_path / "runs").exists()
