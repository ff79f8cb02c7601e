"""The page in a real browser, and the files that are written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments.__main__ import main
from experiments.records import RecordError
from experiments.report import example, page, plots
from tests.experiments import made_runs
from tests.experiments.browser import Page, browser, program

needs_browser = pytest.mark.skipif(
    program() is None, reason="no Chromium here (Debian: apt-get install chromium)"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = made_runs.whole(tmp_path_factory.mktemp("run"))
    page.write(run)
    return run / "report"


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture
def opened(tab: Page, folder: Path) -> Page:
    tab.size(1280, 900)
    tab.media()
    tab.open(folder / page.HTML)
    return tab


@needs_browser
def test_it_loads_without_errors_or_requests(opened: Page, folder: Path) -> None:
    assert opened.run("document.title") == "The comparison matrix: smoke"
    assert opened.requests() == [(folder / page.HTML).resolve().as_uri()]
    assert opened.complaints() == []


@needs_browser
def test_links_lead_somewhere_and_names_are_unique(opened: Page) -> None:
    dead = "[...document.querySelectorAll('a')].filter(a => !document.getElementById(a.hash.slice(1))).length"
    assert opened.run(dead) == 0
    assert opened.run("document.querySelectorAll('a').length") > 20
    ids = opened.run("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))


@needs_browser
def test_every_table_sorts_by_every_column(opened: Page) -> None:
    script = """
    [...document.querySelectorAll('table.sortable')].flatMap((table, number) => {
      for (const one of document.querySelectorAll('details')) one.open = true;
      return [...table.tHead.rows[0].cells].map((head, column) => {
        const values = () => [...table.tBodies[0].rows].map((row) => {
          const cell = row.cells[column];
          return cell.dataset.sort ?? cell.innerText;
        });
        const before = values();
        head.querySelector('button').click();
        const up = [values(), head.getAttribute('aria-sort')];
        head.querySelector('button').click();
        return [number, before, up, [values(), head.getAttribute('aria-sort')]];
      });
    })"""
    columns = opened.run(script)
    assert len(columns) > 50
    numeric = 0
    for _, before, (up, rising), (down, falling) in columns:
        assert (rising, falling) == ("ascending", "descending")
        assert sorted(before) == sorted(up) == sorted(down)
        if all(re.fullmatch(r"-?(inf|[\d.]+(e[-+]\d+)?)", value) for value in before):
            numbers = sorted(map(float, before))
            assert list(map(float, up)) == numbers
            assert list(map(float, down)) == numbers[::-1]
            numeric += 1
    assert numeric > 30


@needs_browser
def test_the_fastest_cell_comes_last_when_sorted_by_speed(opened: Page) -> None:
    names = opened.run("""(() => {
      const table = document.querySelector('#cells table');
      [...table.tHead.rows[0].cells].find((head) => head.innerText.startsWith('images/s')).querySelector('button').click();
      return [...table.tBodies[0].rows].map((row) => row.cells[0].innerText);
    })()""")
    assert set(names[:2]) == {"C1", "C2"}  # they have none
    assert names[2] == "C3" and set(names[-2:]) == {"C9", "C10"}


@needs_browser
def test_the_log_of_every_failing_cell_opens(opened: Page) -> None:
    logs = opened.run("document.querySelectorAll('details.log').length")
    assert logs == 2
    assert opened.run("document.querySelectorAll('.fault').length") == 1
    hidden = "[...document.querySelectorAll('details.log pre')].filter(p => p.checkVisibility()).length"
    assert opened.run(hidden) == 0
    opened.run("document.querySelectorAll('details.log summary').forEach(s => s.click())")
    assert opened.run(hidden) == logs
    text = opened.run("document.querySelector('details.log pre').innerText")
    assert text.startswith("reading </pre><script>") and text.rstrip().endswith("ValueError: no such thing")
    assert opened.run("document.title") != "owned"


@needs_browser
@pytest.mark.parametrize("width", [320, 375, 768, 1280])
def test_the_page_does_not_scroll_sideways(width: int, opened: Page) -> None:
    opened.size(width, 800)
    opened.run("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert opened.run("document.documentElement.scrollWidth") <= width
    wide = "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth).length"
    if width < 768:
        assert opened.run(wide) > 0  # they scroll by themselves


@needs_browser
def test_it_is_readable_in_light_and_dark(opened: Page) -> None:
    script = """[...document.querySelectorAll('p, td, th, dd, h2, a, pre, .state, .word, svg text')].map((element) => {
      const page = getComputedStyle(document.body).backgroundColor;
      const style = getComputedStyle(element);
      return [style[element instanceof SVGElement ? 'fill' : 'color'], page];
    })"""
    backgrounds = set()
    for scheme in ("light", "dark"):
        opened.media(scheme=scheme)
        colours = {tuple(pair) for pair in opened.run(script)}
        backgrounds |= {back for _, back in colours}
        assert min(_contrast(ink, back) for ink, back in colours) >= 4.5  # WCAG 2.2, AA
    assert len(backgrounds) == 2
    shapes = [f"rgb({', '.join(str(byte) for byte in bytes.fromhex(name[1:]))})" for name in plots.COLOURS]
    assert min(_contrast(ink, back) for ink in shapes for back in backgrounds) >= 3


def _contrast(one: str, other: str) -> float:
    """Of two colours, as WCAG 2.2 defines it."""
    dark, light = sorted((_luminance(one), _luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(value) / 255 for value in re.findall(r"\d+", colour)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@needs_browser
def test_pictures_have_words(opened: Page) -> None:
    pictures = opened.run("""[...document.querySelectorAll('svg')].map((svg) => [svg.getAttribute('role'),
      ...svg.getAttribute('aria-labelledby').split(' ').map((id) => svg.getElementById(id).textContent)])""")
    assert len(pictures) == 5  # throughput, curves of two ranks, start, overhead, scaling
    for role, title, text in pictures:
        assert role == "img" and title and "The values are in the table." in text
    assert opened.run("document.querySelectorAll('svg text').length") > 50  # text stayed text


@needs_browser
def test_on_paper_everything_but_the_logs_is_open(opened: Page) -> None:
    opened.call("Page.printToPDF")
    assert opened.run("document.querySelectorAll('details:not(.log):not([open])').length") == 0


def test_the_same_records_give_the_same_files(folder: Path, tmp_path: Path) -> None:
    page.write(folder.parent, tmp_path)
    for name in (page.HTML, page.MARKDOWN):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


def test_the_summary_has_verdict_claims_and_commands(folder: Path) -> None:
    text = (folder / page.MARKDOWN).read_text(encoding="utf-8")
    parts = ["## Verdict", "## Claims", "## All cells", "## Faults", "## Environment", "## Commands"]
    assert sorted(parts, key=text.index) == parts
    assert "C1 idist xla-tpu spawn 1x2, repeat 1: failed: rank 1 on here exited with code 7" in text
    assert text.count("NP=2 launchers/torchrun.sh") == 10  # a command for each cell
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert rows and "\n\n\n" not in text


def test_the_example_and_the_readme_are_generated(tmp_path: Path) -> None:
    run = made_runs.whole(tmp_path / "run")
    readme = tmp_path / "README.md"
    readme.write_text("before\n")
    with pytest.raises(RecordError, match="between which the table goes"):
        example.write(run, tmp_path)
    readme.write_text(f"before\n{example.BEGIN}\nold\n{example.END}\nafter\n")
    example.write(run, tmp_path)
    first = readme.read_text()
    example.write(run, tmp_path)
    assert readme.read_text() == first
    assert first.startswith(f"before\n{example.BEGIN}\n") and first.endswith(f"{example.END}\nafter\n")
    assert "old" not in first
    rows = [line for line in first.splitlines() if line.startswith("| ")]
    assert len(rows) == 2 + 8  # head, and every cell with a speed
    assert "| idist | horovod | horovodrun | 1x2 | 128 [" in first
    image = tmp_path / "docs/example-report/throughput.svg"
    assert "docs/example-report/throughput.svg)" in first
    assert "currentColor" not in image.read_text() and image.read_text().startswith("<svg")


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = made_runs.whole(tmp_path / "run")
    assert main(["report", str(run), f"--output={tmp_path / 'there'}"]) == 0
    assert str(tmp_path / "there" / page.HTML) in capsys.readouterr().out
    assert (tmp_path / "there" / page.MARKDOWN).is_file()
    assert main(["report", str(tmp_path)]) == 2
    assert "holds no records" in capsys.readouterr().err
