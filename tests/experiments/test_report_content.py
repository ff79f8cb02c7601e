"""What the report says, held against values worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments import codestats
from experiments.collect import collect
from experiments.records import RecordError, Settings
from experiments.report import claims, curves, facts, groups, page, pairs, tables, verdict
from experiments.report.claims import CONFIRMED, OPEN, REFUTED, Claim
from experiments.report.content import Content, content
from experiments.report.groups import Run
from experiments.report.values import Table
from experiments.statistics import Estimate
from tests.experiments import made, made_runs
from tests.experiments.made_runs import LOSSES, failed, skipped, starts


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return groups.read(made_runs.whole(tmp_path_factory.mktemp("run")))


@pytest.fixture(scope="module")
def found(run: Run) -> Content:
    return content(run)


def read(folder: Path, *records: Any) -> Run:
    return groups.read(made_runs.write(folder, *records))


def column(table: Table, name: str) -> dict[str, str]:
    """Fields of a column by the first cell that their row names."""
    place = table.columns.index(name)
    return {row[0].text.partition(",")[0]: row[place].plain for row in table.rows}


def claim(run: Run, place: int) -> Claim:
    launches = pairs.launches(run.scenes, "spawn", "torch_distributed_launch")
    families = curves.families(run.scenes)
    return claims.settle(run, codestats.statistics(), pairs.overheads(run.scenes), launches, families)[place]


def test_repeats_are_one_group_and_numbered_by_their_starts(run: Run) -> None:
    # the failed and the skipped one have the first places in the order of starts
    assert [(group.number, group.state, len(group.records)) for group in run.groups] == [
        (1, "failed", 1),
        (2, "skipped", 1),
        *((number, "ok", 3) for number in range(3, 11)),
    ]
    assert len(run.scenes) == 1 and len(run.scenes[0].groups) == 10


def test_the_matrix_has_every_cell_with_its_numbers_and_reasons(found: Content) -> None:
    states = column(found.matrix, "state")
    assert states["C1"] == "failed rank 1 on here exited with code 7"
    assert states["C2"] == "skipped needs 2 NVIDIA GPUs, this machine has 0"
    assert {states[f"C{number}"] for number in range(3, 11)} == {"ok"}
    speeds = column(found.matrix, "images/s")
    assert speeds["C3"].startswith("63.9 [")  # 64 images in 1.001 s
    assert speeds["C4"].startswith("102 [")  # 64 / (0.625 * 1.001) = 102.3
    assert speeds["C9"].startswith("128 [")  # 64 / 0.5005 = 127.9
    assert column(found.matrix, "n steps / starts")["C4"] == "36 / 3"
    assert column(found.matrix, "accuracy")["C4"] == "0.5000 of 100 images"


def test_the_verdict_names_the_fastest_and_what_is_alike(found: Content) -> None:
    fastest = found.verdict[0]
    assert fastest.text.startswith("idist horovod horovodrun 1x2 (C9) has the highest median: 128 images/s [")
    assert "Not shown to be slower: horovod_native horovod horovodrun 1x2 (C10)" in fastest.text
    assert "Shown to be slower: native_ddp gloo torchrun 1x2 (C4), " in fastest.text
    last = found.verdict[-1]
    assert last.text == "10 cells, 26 starts: 8 ok, 1 skipped, 1 failed."
    assert [group.number for group in last.groups] == [1]


def test_scaling_is_against_one_process(run: Run) -> None:
    rows = {one.group.number: one for one in pairs.scalings(run.scenes)}
    assert set(rows) == set(range(4, 11)) and {one.base.number for one in rows.values()} == {3}
    assert rows[4].efficiency.value == pytest.approx(1.0 / 0.625 / 2)
    assert rows[9].efficiency.value == pytest.approx(1.0)


def test_scaling_prefers_the_same_cell_with_fewer_ranks(tmp_path: Path) -> None:
    run = read(tmp_path, *starts(1.0, processes=1), *starts(0.4, processes=4))
    (one,) = pairs.scalings(run.scenes)
    assert (one.base.cell.world_size, one.group.cell.world_size) == (1, 4)
    assert one.efficiency.value == pytest.approx(1.0 / 0.4 / 4)


def test_overhead_is_against_the_same_backend_and_launcher(run: Run) -> None:
    found = {pair.ours.number: pair for pair in pairs.overheads(run.scenes)}
    assert {number: pair.theirs.number for number, pair in found.items()} == {5: 4, 6: 4, 9: 10}
    assert found[5].ratio.value == pytest.approx(1.0)
    assert found[6].ratio.value == pytest.approx(0.8 / 0.625)
    table = tables.overhead(pairs.overheads(run.scenes))
    assert column(table, "overhead")["C6"].startswith("+28.0 % [+")
    assert column(table, "costs nothing?") == {"C5": CONFIRMED, "C6": REFUTED, "C9": CONFIRMED}


@pytest.mark.parametrize(
    ("spawn", "launch", "repeats", "expected"),
    [(15.0, 10.0, 3, CONFIRMED), (10.0, 15.0, 3, REFUTED), (10.0, 10.0, 3, OPEN), (15.0, 10.0, 1, OPEN)],
)
def test_slower_start_is_settled(
    spawn: float, launch: float, repeats: int, expected: str, tmp_path: Path
) -> None:
    run = read(
        tmp_path,
        *starts(1.0, launcher="spawn", first_step_s=spawn, repeats=repeats),
        *starts(1.0, launcher="torch_distributed_launch", first_step_s=launch, repeats=repeats),
    )
    settled = claim(run, 0)
    assert settled.verdict == expected
    assert f"n = {repeats} start" in settled.text
    assert f"{100 * (spawn / launch - 1):+.1f} %" in settled.text


@pytest.mark.parametrize(
    ("idist", "native", "repeats", "expected"),
    [
        (1.0, 1.0, 3, CONFIRMED),
        (0.9, 1.0, 3, CONFIRMED),
        (1.1, 1.0, 3, REFUTED),
        (1.0, 1.0, 1, OPEN),
    ],
)
def test_cost_at_run_time_is_settled(
    idist: float, native: float, repeats: int, expected: str, tmp_path: Path
) -> None:
    run = read(
        tmp_path,
        *starts(idist, program="idist", repeats=repeats),
        *starts(native, program="native_ddp", repeats=repeats),
    )
    assert claim(run, 3).verdict == expected


@pytest.mark.parametrize(
    ("low", "high", "repeats", "expected"),
    [
        (0.98, 1.02, 3, CONFIRMED),
        (0.8, 0.9, 3, CONFIRMED),
        (0.98, 1.06, 3, OPEN),  # may cost more than nothing
        (1.001, 1.002, 3, REFUTED),  # little, but certain
        (0.98, 1.02, 1, OPEN),
    ],
)
def test_what_counts_as_no_cost(low: float, high: float, repeats: int, expected: str) -> None:
    found = Estimate(value=(low + high) / 2, low=low, high=high, steps=90, repeats=repeats)
    assert claims.costs(found) == expected


def test_pairs_settle_together_what_none_of_them_does(tmp_path: Path) -> None:
    records, noise = [], iter([1.00, 1.04, 0.97, 1.03, 0.98, 1.01, 0.99, 1.04, 0.96, 1.02, 0.97, 1.01] * 3)
    for launcher in ("torchrun", "torch_distributed_launch", "spawn"):
        for program in ("idist", "native_ddp"):
            for repeat in (1, 2, 3):
                cell = made.cell(program=program, launcher=launcher, repeat=repeat)
                records.append(made.record([next(noise)] * 6, cell, order=len(records) + 1))
    settled = claim(read(tmp_path, *records), 3)
    assert settled.text.startswith("3 not decidable. All pairs of ") and "together: " in settled.text
    assert settled.verdict == CONFIRMED and "n = 9 starts: confirmed" in settled.text


def test_launchers_that_disagree_do_not_settle_it(tmp_path: Path) -> None:
    times = {("idist", "spawn"): 15.0, ("idist", "torch_distributed_launch"): 10.0}
    times |= {("native_ddp", "spawn"): 10.0, ("native_ddp", "torch_distributed_launch"): 15.0}
    records = [
        record
        for (program, launcher), seconds in times.items()
        for record in starts(1.0, first_step_s=seconds, program=program, launcher=launcher)
    ]
    settled = claim(read(tmp_path, *records), 0)
    assert settled.verdict == OPEN
    assert settled.text.startswith("1 confirmed, 1 refuted. ")


def test_the_rank_that_needs_the_most_memory_counts() -> None:
    ranks = made.measured([1.0])["ranks"]
    ranks[1] = {**ranks[1], "peak_memory_bytes": 3 * 2**20}
    (group,) = groups.grouped(starts(1.0, changes={"ranks": ranks}))
    assert group.peak_memory is not None and group.peak_memory.value == 3 * 2**20


def test_claims_without_their_cells_are_not_decidable(tmp_path: Path) -> None:
    run = read(tmp_path, *starts(1.0))
    assert [claim(run, place).verdict for place in range(4)] == [OPEN, CONFIRMED, OPEN, OPEN]
    assert "No program was started by both" in claim(run, 0).text
    assert "not in these records" in claim(run, 2).text


def test_fewer_lines_are_counted(run: Run) -> None:
    lines = {one.program: one.lines for one in codestats.statistics()}
    settled = claim(run, 1)
    assert settled.verdict == CONFIRMED
    for program, count in lines.items():
        assert program == "ignite" or f"{program} {count}" in settled.text


def test_every_backend_has_to_run(tmp_path: Path) -> None:
    layouts: dict[str, dict[str, Any]] = {
        "none": {"launcher": "plain", "processes": 1},
        "gloo": {"launcher": "torchrun"},
        "nccl": {"launcher": "torchrun"},
        "horovod": {"launcher": "horovodrun"},
        "xla-tpu": {"launcher": "spawn"},
    }
    simulated = {"xla-tpu": {"device": "xla (CPU)"}}
    every = {
        name: starts(1.0, backend=name, **layout, repeats=1, changes=simulated.get(name))
        for name, layout in layouts.items()
    }
    good = [record for records in every.values() for record in records]
    whole = claim(read(tmp_path / "all", *good), 2)
    assert whole.verdict == CONFIRMED
    assert whole.text == "It ran on none, gloo, nccl, horovod, xla-tpu (simulated by the CPU)."
    rest = [record for name, records in every.items() if name != "nccl" for record in records]
    without = claim(read(tmp_path / "skipped", *rest, skipped(backend="nccl")), 2)
    assert without.verdict == OPEN
    assert "Not known for nccl (needs 2 NVIDIA GPUs, this machine has 0)" in without.text
    broken = claim(read(tmp_path / "failed", *rest, failed(backend="nccl")), 2)
    assert broken.verdict == REFUTED
    assert "It did not on nccl (rank 1 on here exited with code 7)" in broken.text


LATE = [*LOSSES, 0.8, 0.7]


@pytest.mark.parametrize(
    ("reference", "losses", "word", "past"),
    [
        (LOSSES, LOSSES, curves.IDENTICAL, None),
        (LOSSES, [loss * (1 + 1e-5) for loss in LOSSES], curves.CLOSE, None),
        (LOSSES, [*LOSSES[:4], LOSSES[4] * 1.01, *LOSSES[5:]], curves.DIFFERENT, 5),
        (LATE, [*LATE[:-1], LATE[-1] * 1.01], curves.APART, 14),
        (LOSSES, LOSSES[:-1], "not compared: another number of steps", None),
        (LOSSES, [*LOSSES[:-1], float("nan")], curves.DIFFERENT, 12),
    ],
)
def test_curves_are_judged(
    reference: list[float], losses: list[float], word: str, past: int | None, tmp_path: Path
) -> None:
    records = [*starts(1.0, program="native_ddp", losses=reference), *starts(1.0, losses=losses, order=2)]
    (family,) = curves.families(_scenes(records))
    assert family.reference.cell.program == "native_ddp"
    assert family.curves[0].verdict == curves.REFERENCE
    assert (family.curves[1].verdict, family.curves[1].past) == (word, past)


def _scenes(records: list[Any]) -> list[groups.Scene]:
    run = Run(folder=Path(), groups=groups.grouped(records), left_out={}, missing=[])
    return run.scenes


def test_a_training_that_diverged_has_a_report(tmp_path: Path) -> None:
    bad = [*LOSSES[:-2], float("inf"), float("nan")]
    found = content(read(tmp_path, *starts(1.0, program="native_ddp"), *starts(1.0, losses=bad, order=2)))
    assert column(found.matrix, "loss curve") == {"C1": curves.REFERENCE, "C2": curves.DIFFERENT}
    assert page.html(found)


def test_curves_of_other_images_are_not_compared() -> None:
    other = {"data": {**made.measured([1.0])["data"], "checksum": "sha256:2"}}
    (family,) = curves.families(_scenes([*starts(1.0, program="native_ddp"), *starts(1.0, changes=other)]))
    assert family.curves[1].verdict == "not compared: other images"


def test_a_repeat_that_differs_is_found() -> None:
    records = [*starts(1.0, program="native_ddp"), *starts(1.0, repeats=2)]
    odd = starts(1.0, losses=[loss * 2 for loss in LOSSES], repeats=3)[-1]
    (family,) = curves.families(_scenes([*records, odd]))
    assert family.curves[1].verdict == curves.DIFFERENT
    assert family.curves[1].gap == pytest.approx(1.0)


def test_other_numbers_of_ranks_and_other_trainings_are_not_mixed() -> None:
    records = [
        *starts(1.0),
        *starts(1.0, processes=1),
        *starts(1.0, settings=Settings(batch_size=32)),
    ]
    assert [family.world_size for family in curves.families(_scenes(records))] == [1, 2, 2]
    assert not pairs.overheads(_scenes(records))


def test_where_data_lie_does_not_part_a_training() -> None:
    records = [*starts(1.0, program="native_ddp"), *starts(1.0, settings=Settings(data_path="elsewhere"))]
    assert len(_scenes(records)) == 1


def test_memory_and_cpu(run: Run) -> None:
    table = tables.memory(run)
    assert column(table, "memory MiB")["C4"] == "1.00 [1.00, 1.00]"
    assert column(table, "cores used")["C4"] == "0.500 [0.500, 0.500]"  # 1 s of 2 s
    assert column(table, "n starts")["C4"] == "3"


def test_start_times(run: Run) -> None:
    table = tables.start_times(run)
    assert column(table, "rendezvous s")["C7"] == "7.50 [7.50, 7.50]"
    assert column(table, "first step s")["C7"].startswith("15.0 [")


def test_the_loss_table_has_the_first_and_the_last_step(run: Run) -> None:
    long = [1 / (1 + step) for step in range(400)]
    (family,) = curves.families(_scenes(starts(1.0, losses=long)))
    table = tables.losses(family)
    assert len(table.rows) == 25
    assert [value.text for value in table.rows[0]] == ["1", "1.000000"]
    assert [value.text for value in table.rows[-1]] == ["400", "0.002500"]


def test_faults_have_rank_and_log(run: Run) -> None:
    (fault,) = facts.faults(run)
    assert (fault.group.number, fault.rank) == (1, "rank 1 on here, exit code 7")
    assert [log.name for log in fault.logs] == ["logs/here-rank-1.log", "logs/launcher.log"]
    assert fault.logs[0].text.startswith("reading </pre><script>")
    assert "\x1b" not in fault.logs[0].text and "\r" not in fault.logs[0].text


def test_runs_that_were_collected_have_their_logs(tmp_path: Path) -> None:
    one = made_runs.write(tmp_path / "one", *starts(1.0), failed(processes=1))
    other = made_runs.write(tmp_path / "other", *starts(1.0, settings=Settings(batch_size=32)))
    collect([one, other], tmp_path / "both")
    both = groups.read(tmp_path / "both")
    assert len(both.scenes) == 2
    (fault,) = facts.faults(both)
    assert fault.logs[0].text.endswith("ValueError: no such thing\n")


def test_long_logs_are_cut_and_paths_shortened(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(f"{'x' * 100_000}\n{facts.ROOT}/file.py and {facts.ROOT}-other and {Path.home()}/data\n")
    found = facts.tail(log, "log")
    assert found is not None and found.cut and len(found.text) < 66_000
    assert found.text.endswith(f"\n./file.py and {facts.ROOT}-other and ~/data\n")
    assert facts.tail(tmp_path / "missing", "missing") is None


def test_the_environment_says_what_it_was(run: Run) -> None:
    found = {fact.name: fact.values for fact in facts.environment(run)}
    assert (
        found["machine"] == ["here: two cores, 2 cores, 0 GiB, Linux"] or "two cores" in found["machine"][0]
    )
    assert "gloo: python 3.11, torch 2.0" in found["versions"]
    assert found["date"] == ["1970-01-01 00:00 UTC"]
    assert found["code"] == ["0" * 40]


def test_a_run_without_a_good_cell_has_a_report(tmp_path: Path) -> None:
    found = content(read(tmp_path, failed(), skipped(backend="nccl")))
    assert [section.name for section in found.sections] == ["code"]
    assert [sentence.topic for sentence in found.verdict] == ["Cells"]


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="holds no records"):
        groups.read(tmp_path)


def test_a_run_that_is_not_complete_says_so(run: Run) -> None:
    missing = Run(folder=run.folder, groups=run.groups, left_out={}, missing=[made.cell()])
    sentence = verdict.verdict(missing, [], [])[-1]
    assert "1 starts are planned but have no record" in sentence.text
