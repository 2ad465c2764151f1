"""One run by several processes: the same trajectory on any number, and nothing lost whatever happens to one of them.

Whatever goes wrong here does so in real processes: a rank is killed, stopped, interrupted, fails, or has a NaN of its own.
"""

import contextlib
import hashlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ctld_lab import cli, jobs
from ctld_lab.checkpoints import load_checkpoint
from ctld_lab.executors import pool, run_all, team
from ctld_lab.executors.pool import Worker
from ctld_lab.ranks import ALONE, Ranks, RanksError
from ctld_lab.records import RunDirectory
from ctld_lab.workloads.sda import Dropout

SABOTAGE = Path(__file__).parent / "sabotage"
sys.path.insert(0, str(SABOTAGE))
import sabotaged  # noqa: E402

TEXT = np.random.default_rng(1).integers(97, 103, 3000, dtype=np.uint8).tobytes()
OPTIONS = {
    "ctld": {"lr": 0.05, "momentum": 0.5, "temperature": 0.01},
    "sgd": {"lr": 0.05, "momentum": 0.9},
    "santa": {"lr": 1e-4, "epsilon": 1e-3},
}
pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes as Linux shows them"),
    pytest.mark.xdist_group("ranks"),  # the runs of a fixture serve several tests
]


def sda(method, batch_size=22, **more):
    """Three stages; each explores 8 of 15 steps."""
    workload = {
        "name": "sda",
        "widths": [784, 12, 9, 6],
        "batch_size": batch_size,
        "curve_rows": 20,
        "dtype": "float64",
    }
    return _config("digits", method, workload, steps=[15, 15, 15], **more)


def lstm(method, **more):
    """Five rows: shares are uneven on 2 ranks and on 4."""
    workload = {"name": "char_lstm", "hidden": 7, "layers": 2, "batch_size": 5, "length": 9, "curve_characters": 100}
    return _config("text", method, workload | {"dtype": "float64"}, steps=[30], clip=0.1, **more)


def _config(data, method, workload, **more):
    given = {
        "kind": "train", "role": "final", "method": method, "seed": 3, "data": {"name": data, "sha256": ""},
        "optimizer": OPTIONS[method], "workload": workload, "exploration_steps": 8, "evaluations": 2,
        "checkpoint_seconds": 1e9, "keep_parameters": True,
    }  # fmt: skip
    return given | more


def prepare(root, **configs):
    text = root / "text"
    if not text.exists():
        text.write_bytes(TEXT)
    paths = []
    for name, config in configs.items():
        if config["data"]["name"] == "text":
            data = {"name": "text", "path": str(text), "sha256": hashlib.sha256(TEXT).hexdigest()}
            config = config | {"data": data}
        RunDirectory(root / name).prepare(config)
        paths.append(root / name)
    return paths


def execute(paths, ranks, start=contextlib.nullcontext):
    """The states, in order."""
    engine = "local" if ranks == 1 else "pool"
    with start():
        return list(run_all(paths, engine=engine, ranks=ranks, threads=1).values())


def parameters(path):
    found = load_checkpoint(path / "parameters.safetensors")
    return torch.cat([tensor.flatten() for tensor in found.values()])


def difference(path, other):
    """Relative to the largest parameter."""
    mine, theirs = parameters(path), parameters(other)
    assert mine.dtype == torch.float64
    return float((mine - theirs).abs().max() / theirs.abs().max())


def record(path):
    """All that a run left, times excepted."""
    run = RunDirectory(path)
    metrics, result = run.metrics(), dict(run.result())
    for line in (*metrics, result):
        del line["seconds"]
    return metrics, run.trace(), result


def same_bits(path, other):
    return torch.equal(parameters(path), parameters(other)) and record(path) == record(other)


def alive(pid):
    """Zombies, whose parent has not looked yet, are not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture(scope="module", autouse=True)
def _sabotage():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(SABOTAGE), prepend=os.pathsep)
        patch.setenv("CTLD_TIMEOUT", "120")
        patch.setitem(jobs.KINDS, "train", "sabotaged")
        yield


@contextlib.contextmanager
def forked(timeout="120"):
    """Ranks are forked from a process that has imported torch, where it does not matter how they start.

    They are spawned otherwise, and seconds pass before each of them has it.
    """
    multiprocessing.set_forkserver_preload(["torch._dynamo", "torch.distributed", "ctld_lab.executors.team"])
    with pytest.MonkeyPatch.context() as patch:
        context = multiprocessing.get_context("forkserver")
        patch.setattr(pool, "multiprocessing", SimpleNamespace(get_context=lambda kind: context))
        patch.setattr(team, "work_as_rank", partial(sabotaged.work_as_rank, timeout=timeout))
        yield


# ---- the same trajectory ----

KINDS = {
    "sda-ctld": sda("ctld"),
    "sda-sgd-uneven": sda("sgd", batch_size=21),
    "sda-santa": sda("santa"),
    "lstm-ctld": lstm("ctld"),
    "lstm-sgd": lstm("sgd"),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """By number of ranks, where the runs are; "2 again" is a second time on two."""
    roots = {name: tmp_path_factory.mktemp("ranks") for name in ("1", "2", "2 again", "4")}
    for ranks, names in ((1, ["1"]), (2, ["2", "2 again"]), (4, ["4"])):
        paths = [path for name in names for path in prepare(roots[name], **KINDS)]
        assert execute(paths, ranks, forked) == ["done"] * len(paths), [RunDirectory(path).failure() for path in paths]
    return roots


@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_ranks_trains_alike(trained, kind):
    alone = trained["1"] / kind
    for ranks in ("2", "4"):
        path = trained[ranks] / kind
        assert 0 < difference(path, alone) <= 1e-6  # the sums are taken in another order
        for mine, theirs in zip(record(path)[0], record(alone)[0], strict=True):
            assert mine["test"] == pytest.approx(theirs["test"], rel=1e-6)
        for mine, theirs in zip(record(path)[1], record(alone)[1], strict=True):
            assert mine == pytest.approx(theirs, rel=1e-6)
        assert RunDirectory(path).environment()["ranks"] == int(ranks)
    assert len(RunDirectory(alone).trace()) == (0 if "ctld" not in kind else 24 if "sda" in kind else 8)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_number_of_ranks_gives_the_same_bits(trained, kind):
    assert same_bits(trained["2"] / kind, trained["2 again"] / kind)


def test_each_row_has_one_rank():
    for rows, size in ((22, 4), (5, 2), (4, 4), (7, 3)):
        shares = [Ranks(rank, size).share(rows) for rank in range(size)]
        assert [row for share in shares for row in range(rows)[share]] == list(range(rows))
        sizes = [len(range(rows)[share]) for share in shares]
        assert max(sizes) - min(sizes) <= 1
        # Means of the ranks, weighted, have the mean over rows as their mean.
        values = np.arange(rows) ** 2.0
        weighted = [values[share].mean() * Ranks(rank, size).weight(rows) for rank, share in enumerate(shares)]
        assert np.mean(weighted) == pytest.approx(values.mean(), rel=1e-12)
    assert (ALONE.share(5), ALONE.weight(5)) == (slice(0, 5), 1.0)
    with pytest.raises(ValueError, match="a batch of 3 rows cannot be shared by 4 ranks; give --ranks 3 or fewer"):
        Ranks(0, 4).share(3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dropout_does_not_depend_on_the_number_of_ranks(dtype):
    """Shares of it are rows of the mask of the whole batch, and nobody asks torch's global generator."""
    rows = torch.linspace(1, 2, 7 * 300, dtype=dtype).view(7, 300)
    dropout = Dropout(0.2)
    dropout.generator = np.random.default_rng(1)
    whole = dropout(rows)
    before = torch.get_rng_state()
    for size in (1, 2, 3, 7):
        parts = []
        for rank in range(size):
            dropout = Dropout(0.2)
            dropout.share, dropout.batch_size = Ranks(rank, size).share(7), 7
            dropout.generator = np.random.default_rng(1)
            parts.append(dropout(rows[dropout.share]))
        assert torch.equal(torch.cat(parts), whole)
        assert torch.equal(dropout.eval()(rows), rows)
    assert torch.equal(torch.get_rng_state(), before)


# ---- what happens to one of them ----


@pytest.mark.parametrize(("begun", "resumed"), [(1, 2), (2, 1)])
def test_stopped_and_resumed_on_another_number_of_ranks(trained, tmp_path, begun, resumed):
    """After a checkpoint. A signal to any rank stops all; of two, it is the second."""
    stop = {"how": "terminate", "rank": begun - 1, "step": 20}
    (path,) = prepare(tmp_path, **{"lstm-ctld": lstm("ctld", sabotage=stop)})
    assert execute([path], begun, forked) == ["interrupted"]
    assert RunDirectory(path).failure() is None
    state = load_checkpoint(RunDirectory(path).checkpoint)
    assert state["stage_step"] in (20, 21)  # at once
    assert state["workload"]["carried"][0].shape == (2, 5, 7)  # the rows of all ranks
    assert execute([path], resumed, forked) == ["done"]
    assert difference(path, trained["1"] / path.name) <= 1e-6
    environment = RunDirectory(path).environment()
    assert (environment["ranks"], [each["ranks"] for each in environment["went_on_in"]]) == (begun, [resumed])


def test_a_rank_that_is_killed_fails_the_run_and_nothing_is_lost(trained, tmp_path):
    """Between its gradient and the sum over ranks. The message says who, what to do, and it is true."""
    kill = {"how": "kill", "rank": 1, "step": 21}
    (path,) = prepare(tmp_path, **{"sda-ctld": sda("ctld", checkpoint_seconds=0.0, sabotage=kill)})
    began = time.monotonic()
    assert execute([path], 2) == ["failed"]
    assert time.monotonic() - began < 100  # not after the two minutes that ranks wait
    assert RunDirectory(path).failure()["error"] == (
        "Killed: rank 1 of 2 was killed by signal 9, as happens when memory runs out; "
        "the run can be resumed from its last checkpoint"
    )
    assert not any(alive(int((path / f"pid{rank}").read_text())) for rank in (0, 1))
    state = load_checkpoint(RunDirectory(path).checkpoint)
    assert (state["stage"], state["stage_step"]) == (1, 5)  # the twenty steps before are all there
    with pytest.raises(SystemExit) as leaving:
        cli.main(["resume", str(path), "--ranks", "2", "--threads", "1"])
    assert leaving.value.code == 0
    assert RunDirectory(path).failure() is None
    assert same_bits(path, trained["2"] / "sda-ctld")


def test_nan_on_one_rank_ends_the_run_on_all_alike(tmp_path):
    """As a divergence, which is a result: of CTLD in exploration, where it refuses the step, and in fine-tuning; of SGD."""
    configs = {
        f"{kind}-{step}": make(method, sabotage={"how": "nan", "rank": rank, "step": step})
        for kind, make, method, rank, step in (
            ("exploring", sda, "ctld", 1, 5),
            ("tuning", sda, "ctld", 1, 11),
            ("first", lstm, "ctld", 0, 4),
            ("plain", lstm, "sgd", 1, 4),
        )
    }
    paths = prepare(tmp_path, **configs)
    assert execute(paths, 2, forked) == ["done"] * 4
    assert [RunDirectory(path).result()["diverged"] for path in paths] == [True] * 4
    # Refused before it is taken, or seen by the next evaluation.
    assert [RunDirectory(path).result()["steps"] for path in paths] == [4, 15, 3, 15]


def test_an_error_on_one_rank_is_the_one_that_is_told(tmp_path, capfd):
    """And not that the others have lost it. A batch that is too small is one of all ranks."""
    broken, small, good = prepare(
        tmp_path,
        broken=sda("sgd", sabotage={"how": "raise", "rank": 1, "step": 3}),
        small=sda("sgd", batch_size=1),
        good=lstm("sgd"),
    )
    assert execute([broken, small, good], 2) == ["failed", "failed", "done"]
    assert RunDirectory(broken).failure()["error"] == "ArithmeticError: as it was asked to (rank 1 of 2)"
    assert "in worse" in RunDirectory(broken).failure()["traceback"]
    assert "cannot be shared by 2 ranks; give --ranks 1 or fewer" in RunDirectory(small).failure()["error"]
    assert "Traceback" not in capfd.readouterr().err


def test_a_rank_that_hangs_is_waited_for_and_then_given_up(tmp_path):
    hang = {"how": "hang", "rank": 1, "step": 12}
    (path,) = prepare(tmp_path, **{"sda-ctld": sda("ctld", checkpoint_seconds=0.0, sabotage=hang)})
    began = time.monotonic()
    assert execute([path], 2, partial(forked, timeout="6")) == ["failed"]
    assert time.monotonic() - began < 100
    error = RunDirectory(path).failure()["error"]
    assert error.startswith("RanksError: rank 0 of 2 waited 6 s for another rank, which hangs")
    assert "can be resumed from its last checkpoint. CTLD_TIMEOUT=SECONDS sets how long they wait" in error
    assert error.endswith("No word came from rank 1 of 2")
    assert not any(alive(int((path / f"pid{each}").read_text())) for each in (0, 1))
    assert load_checkpoint(RunDirectory(path).checkpoint)["stage_step"] == 11  # the steps before are all there


@pytest.mark.parametrize("said", ["soon", "0", "-3", "nan"])
def test_a_timeout_that_is_none_is_refused(monkeypatch, said):
    monkeypatch.setenv("CTLD_TIMEOUT", said)
    with pytest.raises(RanksError, match=f"CTLD_TIMEOUT={said} is no time; give seconds, such as 600"):
        _ = Ranks(0, 2).timeout


# ---- the command ----


@pytest.mark.long
def test_torchrun(tmp_path):
    """The whole study by two ranks, one run after the other."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "ctld_lab"]
    study = ["run", "sda", "--scale", "smoke", "--methods", "ctld", "--seeds", "1", "--dir", str(tmp_path / "study")]

    def call(*more):
        done = subprocess.run(
            [*words, *study, "--no-report", *more], env=environment, capture_output=True, text=True, timeout=100
        )
        return done.returncode, done.stdout + done.stderr

    code, out = call()
    assert code == 0, out
    runs = sorted((tmp_path / "study" / "runs").iterdir())
    assert [RunDirectory(run).state() for run in runs] == ["done"] * 4
    assert {RunDirectory(run).environment()["ranks"] for run in runs} == {2}
    assert out.count("done    ctld-paper-seed0: 96 steps") == 1  # one of them talks
    code, out = call("--ranks", "2")
    assert code == 1  # torchrun's own; it ends the ranks when the first of them leaves with 2
    assert out.count("ctld: torchrun has started 2 ranks, which take one run after the other; leave --engine") == 1
    assert "exitcode  : 2 " in out


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("run sda --ranks 0", "--ranks 0: at least 1 and at most 1024 are needed"),
        ("run sda --ranks 2 --engine ray", "--engine ray executes a run in one process; leave it out with --ranks 2"),
        ("resume . --ranks 2 --engine local", "--engine local executes a run in one process"),
        ("run double-well --scale smoke --ranks 2", "runs of kind double_well are not trained"),
    ],
)
def test_what_ranks_cannot_be(line, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as leaving:
        cli.main(line.split())
    assert leaving.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize("delay", [0.3, 1.5])
def test_ranks_that_are_still_starting_do_not_outlive_a_killed_command(delay, tmp_path):
    """They once did, for minutes: the first to leave took the directory away in which the others wanted to meet."""
    (path,) = prepare(tmp_path, run=sda("ctld"))
    words = [sys.executable, "-m", "ctld_lab", "resume", str(path), "--ranks", "4", "--threads", "1"]
    command = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        end = time.monotonic() + 60
        while len(ranks := _children(command.pid)) < 4:
            assert time.monotonic() < end
            time.sleep(0.02)
        time.sleep(delay)
        command.kill()
        command.wait()
        # Less than the minute that an orphan has for a checkpoint; these have none to save.
        end = time.monotonic() + 50
        while any(Path(f"/proc/{rank}").exists() for rank in ranks):
            assert time.monotonic() < end, "a rank outlives the command"
            time.sleep(0.05)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(command.pid, signal.SIGKILL)


def test_a_rank_that_waits_for_one_that_left_does_not_use_up_the_minute(tmp_path):
    """Rank 0 may leave without a word, if it has not met the others yet: here it was never there."""
    (path,) = prepare(tmp_path, run=sda("ctld"))
    store = tmp_path / "store"
    rank = Worker(team.work_as_rank, 1, 1, 2, str(store))
    rank.give(path)
    end = time.monotonic() + 120
    while not store.exists():  # it has imported torch, and waits for rank 0's word
        assert time.monotonic() < end
        time.sleep(0.05)
    rank.pipe.close()
    rank.process.join(timeout=40)
    assert rank.process.exitcode is not None


def _children(pid):
    """Processes that multiprocessing has spawned, the tracker of its resources aside."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == pid and b"spawn_main" in (place / "cmdline").read_bytes():
                found.append(int(place.name))
    return found
