"""What the documents say is so: snippets run, commands exist, the map shows the rooms that there are."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import oncelog
from oncelog import LogSettings

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "oncelog"
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md"))]
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text()
FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<content>.*?)^```$", re.MULTILINE | re.DOTALL)
MARKS = {"spark.md": [pytest.mark.xdist_group("spark"), pytest.mark.filterwarnings("ignore")]}
"""What starts a Spark runs where the other tests do that, and PySpark warns of itself."""
SNIPPETS = [
    pytest.param(
        match["content"],
        id=f"{document.name}:{document.read_text().count(chr(10), 0, match.start()) + 1}",
        marks=MARKS.get(document.name, []),
    )
    for document in DOCUMENTS
    for match in FENCE.finditer(document.read_text())
    if match["language"] == "python"
]
FOLDER_FILES_MAX = 17
"""The files of a folder, with its ``__init__.py``."""
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
MODULES = {path.stem for path in SOURCES.rglob("*.py")} | {path.name for path in SOURCES.rglob("*") if path.is_dir()}


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_snippet_runs_as_it_stands(snippet: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader who copies a snippet into a fresh folder gets a program that works, and whose assertions hold."""
    monkeypatch.chdir(tmp_path)
    if "SparkSession" in snippet:  # alone: the next test would be given its Spark, whatever it asks for
        subprocess.run([sys.executable, "-c", snippet], check=True)
    else:
        exec(compile(snippet, "snippet", "exec"), {"__name__": "__main__"})


def test_the_first_program_can_be_run_again(tmp_path: Path) -> None:
    """The tutorial of five minutes: the second run says that each order is known, at the same position."""
    program = next(FENCE.finditer((ROOT / "docs" / "start.md").read_text()))["content"]
    (tmp_path / "orders.py").write_text(program)
    runs = [
        subprocess.run([sys.executable, "orders.py"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert runs[0] == "0 stored\n1 stored\n2 stored\n"
    assert f"```text\n{runs[1]}```" in (ROOT / "docs" / "start.md").read_text()


def test_readme_has_snippets() -> None:
    """The test above runs something."""
    assert sum("README" in str(snippet.id) for snippet in SNIPPETS) >= 2


@pytest.mark.parametrize("document", DOCUMENTS, ids=[document.name for document in DOCUMENTS])
def test_every_command_exists(document: Path) -> None:
    """Every ``make`` target that a document names is one."""
    named = re.findall(r"`(?:[A-Z]+=\S+ )*make (\w+)", document.read_text())
    assert set(named) <= TARGETS


@pytest.mark.parametrize("document", DOCUMENTS, ids=[document.name for document in DOCUMENTS])
def test_every_link_leads_somewhere(document: Path) -> None:
    """Files that a document links to are there."""
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", document.read_text())
    assert [link for link in links if not (document.parent / link).exists()] == []


def test_links_of_the_readme_work_on_a_package_index() -> None:
    """The README is shown where no file of the repository is: its links are addresses, each of a file that is there."""
    links = re.findall(r"\]\(([^)#]+)", (ROOT / "README.md").read_text())
    forms = r"https://(github\.com/oncelog/oncelog/blob/main|raw\.githubusercontent\.com/oncelog/oncelog/main)/(.+)"
    paths = [match[2] for link in links if (match := re.fullmatch(forms, link))]
    assert len(paths) == len(links) > 10
    assert [path for path in paths if not (ROOT / path).is_file()] == []


def test_pictures_are_small_and_used() -> None:
    """A picture that no page shows, or that slows a page down, is not kept."""
    shown = "".join(document.read_text() for document in DOCUMENTS)
    for picture in (ROOT / "docs" / "pictures").iterdir():
        assert f"pictures/{picture.name}" in shown, picture.name
        assert picture.stat().st_size < 100_000, picture.name


def test_every_example_is_a_folder_with_a_readme_in_the_gallery() -> None:
    """Who looks for code finds it, what it shows, and how to run it; a test runs it."""
    gallery = (ROOT / "docs" / "examples.md").read_text()
    tested = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    examples = [path for path in (ROOT / "examples").iterdir() if path.is_dir() and path.name != "__pycache__"]
    assert len(examples) >= 8
    for example in examples:
        assert (example / "README.md").is_file(), example
        assert f"/examples/{example.name})" in gallery, example
        assert re.search(rf"examples.*\b{example.name}\b", tested), example


def test_readme_names_errors_that_are_there() -> None:
    """What the README's table says to catch can be caught."""
    cells = re.findall(r"`([A-Z]\w+)\b[^`]*`", (ROOT / "README.md").read_text())
    assert set(cells) <= set(oncelog.__all__)


# The map.


def test_every_room_is_on_the_map() -> None:
    """A folder of the package has its paragraph, and a paragraph its folder."""
    rooms = {path.parent.name for path in SOURCES.glob("*/__init__.py")}
    assert set(re.findall(r"^- \*\*(\w+)\*\*", ARCHITECTURE, re.MULTILINE)) == rooms


def test_every_file_on_the_map_is_there() -> None:
    """The files that the picture and the text name are in the tree."""
    picture = FENCE.search(ARCHITECTURE)
    assert picture is not None
    prose = {"ordered", "durable", "once", "pure", "the", "contract", "bytes", "values"}
    drawn = set(re.findall(r"\b[a-z_]+\b", picture["content"])) - prose
    written = re.findall(r"`([a-z_]+(?:\.[a-z_]+)?)`", ARCHITECTURE)
    named = drawn | {name.removesuffix(".py").split(".")[0] for name in written}
    assert named <= MODULES


def test_the_map_is_narrow_and_its_paths_are_there() -> None:
    """Lines fit a screen, and a folder that is named with its parent is in the tree."""
    assert [line for line in ARCHITECTURE.splitlines() if len(line) >= 120] == []
    paths = re.findall(r"`([a-z_]+(?:/[a-z_]+)+)`", ARCHITECTURE)
    assert paths
    gone = [path for path in paths if not any((at / path).exists() for at in (ROOT, SOURCES)) and not _module(path)]
    assert gone == []


def test_the_tour_leads_to_files_that_are_there() -> None:
    """A newcomer who follows the questions of CONTRIBUTING.md finds each file."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    tour = text[text.index("## A tour in twenty-two questions") : text.index("## Habits")]
    rows = [line for line in tour.splitlines() if line.startswith("| ") and "`" in line]
    assert len(rows) == 22
    for row in rows:
        paths = re.findall(r"`([a-z_]+(?:/[a-z_]+)*(?:\.py|/))`", row)
        assert paths, f"no path in {row}"
        assert [path for path in paths if not (SOURCES / path).exists()] == []


def test_no_folder_is_too_large() -> None:
    """A folder has about fifteen modules: a reader finds a file by the names of its neighbours."""
    counts = {folder: sum(1 for _ in folder.glob("*.py")) for folder in SOURCES.rglob("*/")}
    assert {str(folder): count for folder, count in counts.items() if count > FOLDER_FILES_MAX} == {}


def _module(path: str) -> bool:
    return (SOURCES / f"{path}.py").exists()


def test_every_name_on_a_disk_is_explained(tmp_path: Path) -> None:
    """Anybody who looks into a log's folder finds in the map what each name in it is."""
    with oncelog.connect(tmp_path.as_uri()) as db:
        log = db.log("orders", LogSettings(segment_bytes=64 * 1024), create=True)
        with log.writer() as writer:
            for number in range(20):
                writer.append(bytes(10_000), id=str(number))
            writer.snapshot()
        log.seal()
        with log.read(lease_s=60) as reader:
            next(iter(reader))
            found = {path.name for path in (tmp_path / "logs" / "orders").iterdir()}
    tree = ARCHITECTURE.partition("logs/<name>/\n")[2].partition("```")[0]
    listed = set(re.findall(r"(?:^  |\S  )(\w+)(?=/|  )", tree, re.MULTILINE))
    assert found <= listed
    assert listed <= found | {"pages", "torn", "temporary"}


# The example.


def test_example_shows_what_it_promises() -> None:
    """With ids nothing is lost or doubled, and the control shows that this is not so by itself."""
    done = subprocess.run(
        [sys.executable, "-m", "examples.embedded"],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=True,
    )
    rows = {
        cells[0]: [int(cell) for cell in cells[1:]]
        for line in done.stdout.splitlines()
        if line.startswith("│") and (cells := [cell.strip() for cell in line.strip("│").split("│")])
    }
    assert list(rows) == ["with ids", "control: idempotence off"]
    *_, lost, doubled = rows["with ids"]
    assert (lost, doubled) == (0, 0)
    *_, lost, doubled = rows["control: idempotence off"]
    assert lost == 0
    assert doubled > 0
