"""The matrix file: presets of cells. What is wrong in it is said with file, line and field."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import Field, ValidationError, field_validator

from experiments.records import Cell, Part, Settings

FILE = Path(__file__).with_name("matrix.yaml")
_PLACES = tuple(name for name in Cell.model_fields if name not in ("settings", "repeat"))
_NAMES = (*_PLACES, *Settings.model_fields)
Value = str | int | float | None


class MatrixError(ValueError):
    """The matrix file is wrong; the message is one line with file, line and field."""


class Preset(Part):
    """One matrix. Fields: see the head of matrix.yaml."""

    about: str
    repeats: int = Field(default=1, ge=1, le=100)
    warmup: int = Field(default=4, ge=0)
    time_limit: float = Field(gt=0)
    needs_gpus: bool = False
    settings: Settings = Settings()
    axes: dict[str, list[Value]]
    exclude: list[dict[str, Value | list[Value]]] = Field(default_factory=list)
    include: list[dict[str, Value]] = Field(default_factory=list)

    @field_validator("axes")
    @classmethod
    def _all_places(cls, axes: dict[str, list[Value]]) -> dict[str, list[Value]]:
        for name in ("program", "backend", "launcher", "processes"):
            if not axes.get(name):
                raise ValueError(f"the axis {name} is missing or empty: give it at least one value")
        return axes

    def cells(self) -> list[Cell]:
        """All cells of one repeat, each once: the combinations of the axes, without `exclude`, then `include`."""
        combinations = (
            dict(zip(self.axes, values, strict=True)) for values in itertools.product(*self.axes.values())
        )
        kept = [values for values in combinations if not any(_matches(values, rule) for rule in self.exclude)]
        return list(dict.fromkeys(_cell(values, self.settings) for values in [*kept, *self.include]))


def load(path: Path = FILE) -> dict[str, Preset]:
    """Read and check a matrix file; its presets by name.

    Raises:
        MatrixError: in one line, with file, line and field.
    """
    try:
        text = path.read_text(encoding="utf-8")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        content = yaml.safe_load(text)
    except OSError as error:
        raise MatrixError(f"{path}: {error.strerror or error}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f":{mark.line + 1}"
        raise MatrixError(f"{path}{line}: no YAML: {getattr(error, 'problem', None) or error}") from None
    checker = _Checker(path, dict(_lines(root, ())))
    if (
        not isinstance(content, dict)
        or set(content) != {"presets"}
        or not isinstance(content["presets"], dict)
    ):
        raise checker.error((), "a matrix file holds `presets:` and nothing else")
    return {name: checker.preset(name, values) for name, values in content["presets"].items()}


def choose(presets: Mapping[str, Preset], name: str) -> Preset:
    """The preset of that name.

    Raises:
        MatrixError: there is none.
    """
    if name not in presets:
        raise MatrixError(f"unknown preset {name!r}: there are {', '.join(presets)}")
    return presets[name]


class _Checker:
    """Turns what pydantic and the cells refuse into errors that name a line."""

    def __init__(self, path: Path, lines: dict[tuple[Any, ...], int]) -> None:
        self._path = path
        self._lines = lines

    def error(self, place: tuple[Any, ...], message: str) -> MatrixError:
        """An error at the place, or at the nearest thing around it that stands in the file."""
        around = place
        while around and around not in self._lines:
            around = around[:-1]
        field = ".".join(map(str, around))
        return MatrixError(
            f"{self._path}:{self._lines.get(around, 1)}: {field + ': ' if field else ''}{message}"
        )

    def preset(self, name: str, values: Any) -> Preset:
        place = ("presets", name)
        if not isinstance(values, dict):
            raise self.error(place, "a preset is a mapping: about, time_limit, axes, ...")
        self._names(values, place)
        try:
            preset = Preset.model_validate(values)
        except ValidationError as error:
            raise self._first(error, place) from None
        rules: list[Mapping[str, Any]] = [preset.axes, *preset.exclude, *preset.include]
        for number, rule in enumerate(rules):
            part = ("axes",) if number == 0 else ("exclude", number - 1)
            if number > len(preset.exclude):
                part = ("include", number - 1 - len(preset.exclude))
            self._rule((*place, *part), rule, preset.settings)
        return preset

    def _names(self, values: dict[Any, Any], place: tuple[Any, ...]) -> None:
        for name in values:
            if name not in Preset.model_fields:
                raise self.error((*place, name), f"unknown field{_hint(name, Preset.model_fields)}")
        settings = values.get("settings") or {}
        if isinstance(settings, dict):
            for name in settings:
                if name not in Settings.model_fields:
                    raise self.error((*place, "settings", name), f"unknown setting{_hint(name, _NAMES)}")

    def _rule(self, place: tuple[Any, ...], rule: Mapping[str, Any], settings: Settings) -> None:
        """Check every value by itself, in a cell that is otherwise right."""
        right: dict[str, Any] = {"program": "idist", "backend": "none", "launcher": "plain", "processes": 1}
        if place[-2] == "include":
            for name in set(right) - set(rule):
                raise self.error(place, f"{name} is missing: an included cell needs it")
        for name, given in rule.items():
            if name not in _NAMES:
                raise self.error((*place, name), f"unknown axis{_hint(name, _NAMES)}")
            for index, value in enumerate(given if isinstance(given, list) else [given]):
                try:
                    _cell({**right, name: value}, settings)
                except ValidationError as error:
                    here = (*place, name, index) if isinstance(given, list) else (*place, name)
                    choices = get_args(Cell.model_fields[name].annotation) if name in _PLACES else ()
                    hint = _hint(str(value), [str(choice) for choice in choices])
                    raise self.error(here, f"{value!r}: {error.errors()[0]['msg']}{hint}") from None

    def _first(self, error: ValidationError, place: tuple[Any, ...]) -> MatrixError:
        found = error.errors()[0]
        return self.error((*place, *found["loc"]), found["msg"])


def _cell(values: Mapping[str, Any], settings: Settings) -> Cell:
    own = {name: value for name, value in values.items() if name in _PLACES}
    changed = {name: value for name, value in values.items() if name not in _PLACES}
    return Cell.model_validate({**own, "settings": {**settings.model_dump(), **changed}})


def _matches(values: Mapping[str, Any], rule: Mapping[str, Any]) -> bool:
    return all(
        values.get(name) in (wanted if isinstance(wanted, list) else [wanted])
        for name, wanted in rule.items()
    )


def _hint(name: Any, names: Any) -> str:
    found = difflib.get_close_matches(str(name), list(names), n=1, cutoff=0.6)
    return f"; did you mean {found[0]}?" if found else ""


def _lines(node: yaml.Node | None, place: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], int]]:
    """Every place in the file, as pydantic names it, and its line (from 1)."""
    if node is None:
        return
    yield place, node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield (*place, key.value), key.start_mark.line + 1
            for inner, line in _lines(value, (*place, key.value)):
                if inner != (*place, key.value):
                    yield inner, line
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield from _lines(value, (*place, index))
