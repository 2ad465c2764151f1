"""`ctld status`: what is done, running and left, from made-up records whose times are known."""

import time

import pytest

from ctld_lab import cli
from ctld_lab.commands import lock
from ctld_lab.commands.status import RunStatus
from ctld_lab.records import Appender, StudyDirectory, write_json

# Seconds a step: layer 1 and 2 of a run in which each layer takes 100 steps, evaluated every 10.
FAST, SLOW = 0.5, 2.0


def begin(path, trials=0):
    directory = StudyDirectory(path)
    empty = {key: [] for key in ("methods", "seeds", "commands")}
    directory.prepare({"study": "sda", "scale": "paper", "data": {}, "settings": {"trials": trials}} | empty)
    return directory


@pytest.fixture
def study(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    return begin(tmp_path / "sda-paper")


def add(study, name, *, step=0, factor=1.0, ended=False, told=None, failure=None, diverged=False, steps=(100, 100)):
    """A run that has made `step` steps, `factor` times slower than FAST and SLOW say."""
    run = study.run(name)
    run.prepare({"kind": "train", "role": "final", "steps": list(steps)})
    clock, lines = 0.0, Appender(run.path / "metrics.jsonl") if step else None
    for now in range(0, step + 1, 10):
        # An evaluation comes before the first step of a layer, and after each tenth.
        for stage in {now // 100 + 1, max(now - 1, 0) // 100 + 1} if now < sum(steps) else {len(steps)}:
            if lines is not None:
                lines.append(
                    {"step": now, "stage": stage, "stage_step": now - 100 * (stage - 1), "seconds": {"train": clock}}
                )
        clock += 10 * factor * (FAST if now < 100 else SLOW)
    if lines is not None:
        lines.close()
    if told is not None:
        write_json(run.path / "progress.json", {"step": step, "steps": sum(steps), "time": told})
    if ended:
        run.write("result.json", {"steps": step, "diverged": diverged, "seconds": {"train": clock}})
    if failure:
        run.write("failure.json", {"error": failure})
    return run


def table(capsys, path):
    with pytest.raises(SystemExit) as leaving:
        cli.main(["status", str(path)])
    out = capsys.readouterr().out
    assert not leaving.value.code
    assert all(len(line) <= 80 for line in out.splitlines() if str(path) not in line)
    return out


def test_a_chain_has_one_clock(study):
    """Runs of the studies of samplers: not evaluated on their way, and their seconds are one number."""
    run = study.run("chain")
    run.prepare({"kind": "tempering", "role": "final", "steps": 200})
    run.write("result.json", {"steps": 200, "seconds": 50.0})
    assert RunStatus.read(run, live=False).pace == {1: 0.25}


def test_a_layer_that_was_not_reached_takes_what_it_took_elsewhere(study):
    done = add(study, "ctld-paper-seed0", step=200, ended=True)
    begun = add(study, "sgd-paper-seed0", step=50, factor=3.0)
    fresh = add(study, "adam-paper-seed0")
    runs = [RunStatus.read(run, live=False) for run in (done, begun, fresh)]
    assert runs[0].pace == pytest.approx({1: FAST, 2: SLOW})
    assert runs[0].left() == {}
    assert runs[1].left() == {1: 50, 2: 100}
    assert runs[1].forecast(runs) == pytest.approx(3.0 * 50 * FAST + 100 * SLOW)
    # Of a run that has not begun nothing is known but what the others say: the mean of both.
    assert runs[2].forecast(runs) == pytest.approx(100 * (FAST + 3 * FAST) / 2 + 100 * SLOW)


def test_where_no_run_has_reached_a_layer_its_steps_take_what_steps_took(study, capsys):
    runs = [RunStatus.read(add(study, name, step=step), live=False) for name, step in (("a", 50), ("b", 0))]
    assert runs[0].forecast(runs) == pytest.approx(150 * FAST)
    assert "75 s" in table(capsys, study.path) or "1 min" in table(capsys, study.path)


def test_the_present_speed_counts_and_not_that_of_an_hour_ago(study):
    """Steps 60 to 90 of layer 1 took ten times as long."""
    run = study.run("a")
    run.prepare({"kind": "train", "steps": [1000]})
    lines, clock = Appender(run.path / "metrics.jsonl"), 0.0
    for step in range(0, 200, 10):
        lines.append({"step": step, "stage": 1, "stage_step": step, "seconds": {"train": clock, "log": 0.0}})
        clock += 10 * (FAST if step < 100 else 10 * FAST)
    lines.close()
    assert RunStatus.read(run, live=False).pace == pytest.approx({1: 10 * FAST})


def test_states_and_the_line_that_sums_up(study, capsys):
    add(study, "done-seed0", step=200, ended=True)
    add(study, "lost-seed0", step=40, ended=True, diverged=True)
    add(study, "live-seed0", step=110, told=time.time())
    add(study, "silent-seed0", step=110, told=time.time() - 1000)
    add(study, "broken-seed0", step=20, failure="ValueError: no")
    add(study, "waits-seed0")
    with lock.locked(study.path):
        out = table(capsys, study.path)
    rows = {line.split()[0]: line.split() for line in out.splitlines() if "-seed0" in line}
    states = {name.removesuffix("-seed0"): row[1] for name, row in rows.items()}
    assert states == {
        "done": "done", "lost": "diverged", "live": "running", "silent": "stopped", "broken": "failed", "waits": "waiting",
    }  # fmt: skip
    assert "2 of 6 runs done; 1 running; 1 failed; about " in out
    assert "no command is at work" not in out
    assert rows["live-seed0"][2:4] == ["110", "200"]
    assert rows["done-seed0"][-1] == "–"
    assert "no command is at work" in table(capsys, study.path)


def test_of_many_runs_those_that_are_done_or_wait_are_counted(study, capsys):
    for index in range(15):
        add(study, f"tune-{index:02d}", step=200, ended=True)
        add(study, f"waits-{index:02d}")
    add(study, "begun", step=50)
    out = table(capsys, study.path)
    assert "Not listed: 15 done, 15 waiting." in out
    assert "tune-03" not in out
    assert "begun" in out


def test_nothing_timed_yet_and_a_number_of_steps_that_nobody_knows(study, capsys):
    run = study.run("a")
    run.prepare({"kind": "theorem"})
    out = table(capsys, study.path)
    assert "0 of 1 runs done; nothing timed yet; no command is at work" in out
    assert table(capsys, study.path).split()[-1] == "?"


def test_runs_that_are_not_evaluated_on_their_way_are_timed_as_a_whole(study):
    done, fresh = study.run("a"), study.run("b")
    for run in (done, fresh):
        run.prepare({"kind": "timing", "rounds": 20})
    done.write("result.json", {"steps": 20, "seconds": {"all": 60.0}})
    runs = [RunStatus.read(run, live=False) for run in (done, fresh)]
    assert runs[1].forecast(runs) == pytest.approx(60.0)


def test_a_published_study_has_no_runs_and_says_how_many_there_were(study, capsys):
    write_json(study.path / "study.json", study.description() | {"published": "36 runs done"})
    assert table(capsys, study.path).endswith("36 runs done\n")
    with pytest.raises(SystemExit):
        cli.main(["list", str(study.path)])
    assert "36 runs done" in capsys.readouterr().out


def test_a_strangers_records_are_told_and_not_obeyed(study, capsys):
    write_json(study.path / "study.json", {"study": "\x1b[31mred", "scale": "paper"})
    add(study, "a", step=50)
    assert "\x1b" not in table(capsys, study.path)
    (study.run("a").path / "config.json").write_text("{")
    assert "config.json" in table(capsys, study.path)


def test_no_study_is_refused_with_the_remedy(tmp_path, capsys):
    with pytest.raises(SystemExit) as leaving:
        cli.main(["status", str(tmp_path)])
    assert leaving.value.code == 2
    assert '"ctld run" makes one' in capsys.readouterr().err


def test_studies_that_are_not_counted_are_named(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["status", str(tmp_path)])
    assert ended.value.code == 2
    assert "python research/NAME.py --status" in " ".join(capsys.readouterr().err.split())
