"""The framework: verdicts, files, the report made of them, and the command line."""

import json
import re
import types

import pytest

from benchmarks import __main__ as command
from benchmarks import report, results
from benchmarks.catalogue import NAMES
from benchmarks.results import Result, ResultError, Row
from benchmarks.starting import Bench
from benchmarks.turns import alternating

MACHINE = {
    "host": {"processor": "made", "cores": 2},
    "git": {"revision": "abc", "dirty": False},
    "versions": {"python": "3.11", "torch": "2.14.1"},
}


def row(**values):
    given = {"name": "a | b", "unit": "s", "ours": [[2.0, 2.0], [2.0, 2.0]], "theirs": [[1.0], [1.0]]}
    return Row(**{**given, **values})


def result(**values):
    given = {"name": "engine", "title": "The loop", "text": "How.", "rows": [row()], "machine": MACHINE}
    return Result(**{"date": results.now(), **given, **values})


# ---- verdicts


@pytest.mark.parametrize(
    ("target", "verdict"),
    [
        ({}, ""),
        ({"at_most": 2.0}, "met"),  # the interval is 2 to 2, and a bound belongs to what it allows
        ({"at_least": 2.0}, "met"),
        ({"at_most": 1.999}, "missed"),
        ({"at_least": 2.001}, "missed"),
        ({"at_least": 1.0, "at_most": 3.0}, "met"),
        ({"at_least": 2.5, "at_most": 3.0}, "missed"),
    ],
)
def test_a_target_that_the_whole_interval_meets_or_misses(target, verdict):
    assert row(**target).verdict == verdict


def test_an_interval_on_both_sides_of_the_target_decides_nothing():
    wide = row(ours=[[1.0], [3.0], [2.0]], at_most=2.0)
    assert wide.ratio.low < 2.0 < wide.ratio.high
    assert wide.verdict == "not decided"
    assert row(ours=[[1.0], [3.0], [2.0]], at_least=2.0).verdict == "not decided"


def test_without_another_side_the_target_is_of_the_number_itself():
    alone = {"ours": [[5.0], [5.0]], "theirs": None}
    assert row(**alone).ratio is None
    assert row(**alone, at_most=5.0).verdict == "met"
    assert row(**alone, at_most=4.9).verdict == "missed"


def test_a_ratio_is_ours_by_theirs():
    assert row(ours=[[3.0]], theirs=[[2.0]]).ratio.value == 1.5


# ---- files


def test_a_result_comes_back_as_it_was_written(tmp_path):
    written = result(rows=[row(at_most=2.0, command="launchers/plain.sh x"), row(theirs=None)])
    path = results.write(written, tmp_path / "new")
    assert path == tmp_path / "new" / "engine.json"
    assert results.read(path) == written


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda found: found.pop("title"), "title"),
        (lambda found: found.update(schema_version=2), "schema_version"),
        (lambda found: found["rows"][0].update(ours=[]), "rows.0.ours"),
        (lambda found: found["rows"][0].update(at_mots=1), "at_mots"),
    ],
)
def test_a_broken_file_is_named_with_the_field(tmp_path, change, said):
    path = results.write(result(), tmp_path)
    found = json.loads(path.read_text())
    change(found)
    path.write_text(json.dumps(found))
    with pytest.raises(ResultError) as error:
        results.read(path)
    assert str(path) in str(error.value) and said in str(error.value)


def test_results_of_a_folder_come_in_the_order_of_the_catalogue(tmp_path):
    for name in ("growth", "engine", "training"):
        results.write(result(name=name), tmp_path)
    assert [found.name for found in results.read_all(tmp_path, NAMES)] == ["training", "engine", "growth"]
    with pytest.raises(ResultError, match="has no results"):
        results.read_all(tmp_path / "empty", NAMES)


# ---- report


def test_the_page_counts_targets_and_names_what_is_not_met():
    rows = [
        row(at_most=2.0),
        row(name="slow", at_most=1.5),
        row(name="free"),
        row(name="unclear", ours=[[1.0], [3.0]], at_most=2.0),
    ]
    page = report.markdown([result(rows=rows), result(name="growth", title="Growth", rows=[row()])])
    assert "**1 of 3 targets are met.** Missed: slow, ours. Of 1 the interval" in page
    assert page.index("## The loop") < page.index("## Growth")
    assert r"| a \| b | 2.00 s (ours) | 1.00 s () | 2.00 [2.00, 2.00] | <= 2: met | 4 / 2 |" in page
    widths = {line.replace(r"\|", "").count("|") for line in page.splitlines() if line.startswith("|")}
    assert widths == {7}


def test_the_terminal_shows_the_same_fields():
    text = report.terminal(result(rows=[row(at_most=1.5, what="this", than="that")]))
    for part in ("The loop", "2.00 s (this)", "1.00 s (that)", "<= 1.5: missed", "4 / 2"):
        assert part in text


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"quick": True}, "growth is a trial"),
        ({"machine": {**MACHINE, "host": {"processor": "another", "cores": 2}}}, "several machines"),
    ],
)
def test_no_page_of_trials_or_of_mixed_results(other, said):
    with pytest.raises(ResultError, match=said):
        report.markdown([result(), result(name="growth", **other)])


def test_each_result_tells_its_revision():
    changed = {**MACHINE, "git": {"revision": "def", "dirty": True}}
    page = report.markdown([result(), result(name="growth", machine=changed)])
    assert "revision abc; again" in page and "revision def with changes; again" in page


# ---- command line


@pytest.fixture
def made(monkeypatch):
    """Benchmarks that note that they were called instead of measuring; `made.fails` are those that fail."""
    found = types.SimpleNamespace(called=[], benches=[], fails=set())

    def module_of(name):
        def measure(bench: Bench):
            found.called.append(name)
            found.benches.append(bench)
            bench.new_folder("start")
            if name in found.fails:
                raise ResultError(f"{name} cannot")
            return [row()]

        return types.SimpleNamespace(TITLE=name.title(), TEXT="How.", measure=measure)

    monkeypatch.setattr(command, "module_of", module_of)
    return found


def run(tmp_path, *arguments):
    return command.main(["run", f"--output={tmp_path / 'out'}", *arguments])


def test_an_unknown_benchmark_is_one_line_and_code_2(tmp_path, made, capsys):
    assert run(tmp_path, "--only=engine,engin") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: unknown benchmark 'engin'") and "startup" in line
    assert made.called == [] and not (tmp_path / "out").exists()


def test_a_folder_without_images_is_refused_before_anything_starts(tmp_path, made, capsys):
    assert run(tmp_path, f"--data_path={tmp_path}") == 2
    assert len(capsys.readouterr().err.splitlines()) == 1 and made.called == []


def test_all_are_run_in_the_order_of_the_catalogue(tmp_path, made):
    assert run(tmp_path, "--quick", "--repeats=2") == 0
    assert made.called == list(NAMES)
    assert [found.quick for found in results.read_all(tmp_path / "out", NAMES)] == [True] * len(NAMES)
    assert {(bench.quick, bench.repeats, bench.data_path) for bench in made.benches} == {(True, 2, None)}
    assert len({bench.folder for bench in made.benches}) == len(NAMES)


def test_going_on_leaves_out_what_is_there(tmp_path, made, capsys):
    assert run(tmp_path, "--only=engine") == 0
    before = (tmp_path / "out" / "engine.json").read_bytes()
    assert run(tmp_path, "--only=engine,growth") == 0
    assert made.called == ["engine", "growth"]
    assert (tmp_path / "out" / "engine.json").read_bytes() == before
    assert "engine: is in" in capsys.readouterr().out


def test_one_that_fails_does_not_stop_the_others_and_is_tried_again(tmp_path, made, capsys):
    made.fails = {"engine"}
    assert run(tmp_path, "--only=engine,growth") == 1
    said = capsys.readouterr()
    assert "error: engine: engine cannot" in said.err and "failed: engine" in said.out
    assert [path.name for path in (tmp_path / "out").glob("*.json")] == ["growth.json"]
    made.fails = set()
    assert run(tmp_path, "--only=engine,growth") == 0  # its old files are not in the way
    assert made.called == ["engine", "growth", "engine"]


def test_the_report_of_a_folder_without_results_is_code_2(tmp_path, capsys):
    assert command.main(["report", str(tmp_path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_trial_is_shown_but_not_written(tmp_path, made, monkeypatch, capsys):
    monkeypatch.setattr(command, "ROOT", tmp_path)
    run(tmp_path, "--only=engine", "--quick")
    capsys.readouterr()
    assert command.main(["report", str(tmp_path / "out")]) == 0
    assert "Engine" in capsys.readouterr().out
    assert command.main(["report", str(tmp_path / "out"), "--write"]) == 2
    assert not (tmp_path / "docs").exists()


@pytest.mark.parametrize("text", ["0", "-1", "x", ""])
def test_a_wrong_number_of_starts_is_refused(text, capsys):
    with pytest.raises(SystemExit) as stopped:
        command.main(["run", f"--repeats={text}"])
    assert stopped.value.code == 2 and "is not a number of starts" in capsys.readouterr().err


# ---- turns


def test_sides_take_turns_in_both_orders(tmp_path):
    order = []
    bench = Bench(folder=tmp_path, repeats=3)
    found = bench.in_turns(lambda: order.append("a") or len(order), lambda: order.append("b") or len(order))
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert found == [[1, 4, 5], [2, 3, 6]]
    assert "".join(alternating(3, "ab")) == "abbaab"


def test_a_program_that_fails_is_an_error_with_its_last_words(tmp_path):
    bench = Bench(folder=tmp_path, repeats=1)
    with pytest.raises(ResultError) as error:
        bench.start("plain", 1, "-c", "import sys; print('last words'); sys.exit(3)")
    assert "failed with 3" in str(error.value) and "last words" in str(error.value)


# ---- the README


def test_the_ratios_in_the_readme_are_those_of_the_page():
    section = (
        (command.ROOT / "README.md").read_text(encoding="utf-8").split("\n## Speed\n")[1].split("\n## ")[0]
    )
    shown = re.findall(r"\| ([\d.]+ \[[\d.]+, [\d.]+\]) \|", section)
    page = (command.ROOT / report.PAGE).read_text(encoding="utf-8")
    assert len(shown) == section.count("\n| ") - 2 > 0  # but for the head and the line below it
    assert [ratio for ratio in shown if f"| {ratio} |" not in page] == []
