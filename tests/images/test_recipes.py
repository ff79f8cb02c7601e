"""What the image recipes promise without an engine: everything pinned, in one place, and no mistakes that a linter finds."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
DOCKERFILES = sorted(DOCKER.glob("*.Dockerfile"))
SCRIPTS = [*DOCKER.glob("*.sh"), *DOCKER.glob("inside/*.sh"), ROOT / "launchers" / "container.sh"]
DATED = re.compile(r"debian:bookworm-20\d{6}-slim(@sha256:[0-9a-f]{64})?")


def floating_images(dockerfile: str) -> list[str]:
    """The images in FROM and in --mount=from that are neither stages, nor arguments with a dated default, nor empty."""
    defaults = dict(re.findall(r"^ARG (\w+)=(\S*)$", dockerfile.partition("\nFROM")[0], re.MULTILINE))
    stages = set(re.findall(r"^FROM \S+ AS (\S+)", dockerfile, re.MULTILINE))
    used = re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE) + re.findall(
        r"[,=]from=([^,\s]+)", dockerfile
    )
    used += re.findall(r"^COPY --from=(\S+)", dockerfile, re.MULTILINE)
    names = [defaults.get(name.strip("${}"), name) for name in used]
    return [name for name in names if name not in stages and name != "scratch" and not DATED.fullmatch(name)]


def unpinned_packages(text: str, *, debian: bool) -> list[str]:
    """The lines of a lock that name no version; of Debian's packages the revision may be open, the version not."""
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    entries = [line for line in lines if line and not line.startswith(("--hash", "-c "))]
    form = r"[a-z0-9.+-]+=[\w.:]+(-?\*)?" if debian else r"[\w.\[\],-]+==[\w.+]+( ;.*)?( \\)?"
    return [entry for entry in entries if not re.fullmatch(form, entry)]


def installs(text: str) -> list[str]:
    """The lines that install packages by name instead of from a lock."""
    found = re.findall(r"(?:apt-get|apt|pip3?|uv pip|conda|npm|apk) (?:-\S+ )*(?:install|add) [^\n|&]*", text)
    return [
        line for line in found if not re.search(r"-r |xargs|\$\{|\$\(|\"\$|--no-install-recommends$", line)
    ]


def test_there_is_a_dockerfile_for_every_family() -> None:
    assert [file.stem for file in DOCKERFILES] == ["gloo", "nccl-horovod", "xla"]


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.stem)
def test_no_floating_tag_and_no_package_by_name(dockerfile: Path) -> None:
    text = dockerfile.read_text()
    assert floating_images(text) == []
    assert installs(text) == []
    assert not text.startswith("# syntax"), "an engine without a network cannot pull it"
    assert "HEALTHCHECK" not in text
    assert re.search(r"^USER 1000:1000$", text, re.MULTILINE)


def test_floating_tags_and_unpinned_packages_are_found() -> None:
    assert floating_images("FROM debian:bookworm-slim AS x\nFROM x\nCOPY --from=busybox:latest /a /a\n") == [
        "debian:bookworm-slim",
        "busybox:latest",
    ]
    assert floating_images("ARG BASE=debian:bookworm-20260824-slim\nFROM ${BASE}\n") == []
    assert unpinned_packages("torch>=2\nnumpy==2.1 \\\nfire\n", debian=False) == ["torch>=2", "fire"]
    assert unpinned_packages("tini=0.19.0-*\ncmake\ng++=*\n", debian=True) == ["cmake", "g++=*"]
    assert installs("RUN apt-get install -y curl && pip install torch") == [
        "apt-get install -y curl ",
        "pip install torch",
    ]


@pytest.mark.parametrize("lock", sorted(DOCKER.glob("locks/*.txt")), ids=lambda path: path.stem)
def test_every_lock_pins(lock: Path) -> None:
    assert unpinned_packages(lock.read_text(), debian=lock.name.startswith("debian-")) == []


@pytest.mark.parametrize("script", sorted(DOCKER.glob("inside/*.sh")), ids=lambda path: path.name)
def test_no_script_of_a_build_installs_by_name(script: Path) -> None:
    assert installs(script.read_text()) == []


def test_versions_stand_in_one_place() -> None:
    """The base is the same in all Dockerfiles; nothing else there, in the bake file or in the scripts names a version."""
    bases = {re.search(r"^ARG BASE_IMAGE=(\S+)$", file.read_text(), re.MULTILINE)[1] for file in DOCKERFILES}  # type: ignore[index]
    assert len(bases) == 1
    for file in [*DOCKERFILES, *SCRIPTS, ROOT / "docker-bake.hcl"]:
        text = re.sub(r"^#.*$|^ARG BASE_IMAGE=.*$", "", file.read_text(), flags=re.MULTILINE)
        assert re.findall(r"(?:torch|torchvision|horovod|torch_xla|numpy)==?\d\S*", text) == [], file.name


def test_the_bake_file_and_the_dockerfiles_know_the_same_arguments() -> None:
    bake = (ROOT / "docker-bake.hcl").read_text()
    for name in re.findall(r'^variable "(\w+)"', bake, re.MULTILINE):
        for file in DOCKERFILES:
            assert re.search(rf"^ARG {name}\b", file.read_text(), re.MULTILINE), (name, file.name)
    assert sorted(re.findall(r'^target "(\S+)"', bake, re.MULTILINE)) == [
        "common",
        *(file.stem for file in DOCKERFILES),
    ]


def test_nothing_but_code_reaches_the_builder() -> None:
    first, *rest = [
        line
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    assert first == "*"
    for line in rest:
        if line.startswith("!"):
            assert (ROOT / line[1:]).exists()
            assert line[1:] not in ("data", "shared", ".git")


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.stem)
def test_hadolint(dockerfile: Path) -> None:
    tool = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    if tool is None:
        pytest.skip("no hadolint here: make env with the dev lock")
    answer = subprocess.run([tool, str(dockerfile)], capture_output=True, text=True, timeout=60)
    assert answer.returncode == 0, answer.stdout


def test_a_wrong_backend_is_refused() -> None:
    answer = subprocess.run([DOCKER / "image.sh", "mpi"], capture_output=True, text=True, timeout=30)
    assert answer.returncode == 2
    assert answer.stderr == "image.sh: unknown backend 'mpi': use none, gloo, nccl, horovod or xla-tpu\n"
