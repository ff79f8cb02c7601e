"""Options declared as dataclass fields, filled from text or YAML, with errors that name the option.

A class of options is a frozen, keyword-only dataclass whose fields are made by `option`. This module turns a mapping
of names to texts or plain values into an instance, and an instance's class into the text of `--help`. It imports
neither torch nor anything else that is slow, so that a wrong command line is refused at once.
"""

from __future__ import annotations

import difflib
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import Field, field, fields
from typing import Any, TypeVar, get_args, get_type_hints

T = TypeVar("T")

_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
_TRUE, _FALSE, _NONE = {"true", "yes", "on"}, {"false", "no", "off"}, {"none", "null", "~", ""}


class OptionError(ValueError):
    """What the user asked for cannot be: the message is one line that says what is wrong and what is allowed."""


def option(
    default: T,
    meaning: str,
    *,
    section: str,
    unit: str = "",
    low: float | None = None,
    below: float | None = None,
    high: float | None = None,
    choices: Sequence[str] = (),
    aliases: Mapping[str, str | None] | None = None,
    unset: str = "",
) -> T:
    """Declare one option of a dataclass.

    Args:
        default: the value when the option is not given.
        meaning: one or two plain sentences for `--help`.
        section: the heading under which `--help` shows it.
        unit: what a number counts, for example "images" or "seconds".
        low, below, high: the smallest value allowed, the value it must stay under, the largest value allowed.
        choices: the only texts allowed; empty means any.
        aliases: other ways to write a value, in lower case, and what each means.
        unset: what None stands for, shown as the default in `--help`.
    """
    metadata = {
        "meaning": meaning, "section": section, "unit": unit, "low": low, "below": below, "high": high,
        "choices": tuple(choices), "aliases": dict(aliases or {}), "unset": unset,
    }  # fmt: skip
    return field(default=default, metadata=metadata)


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The one of `names` that looks most like `name`, or None when nothing comes close."""
    found = difflib.get_close_matches(name.lower(), list(names), n=1, cutoff=0.6)
    return found[0] if found else None


def hint(name: str, names: Iterable[str], prefix: str = "") -> str:
    """The end of an error message: `; did you mean X?`, or nothing when no name comes close."""
    found = nearest(name, names)
    return f"; did you mean {prefix}{found}?" if found else ""


def kind_of(options: type, name: str) -> tuple[type, bool]:
    """The plain type of a field (int, float, bool or str) and whether it may be None."""
    annotation = get_type_hints(options)[name]
    parts = get_args(annotation)
    if not parts:
        return annotation, False
    return next(part for part in parts if part is not type(None)), type(None) in parts


def describe(spec: Field[Any], kind: type, optional: bool) -> str:
    """What a field accepts, in words: "a whole number of at least 1 (images)"."""
    limits = spec.metadata
    if limits["choices"]:
        text = "one of " + ", ".join(limits["choices"])
    else:
        text = _KINDS[kind]
        bounds = [
            words.format(limits[key])
            for key, words in (("low", "of at least {}"), ("high", "at most {}"), ("below", "below {}"))
            if limits[key] is not None
        ]
        text = " ".join([text, " and ".join(bounds)]).strip()
    unit = f" ({limits['unit']})" if limits["unit"] and kind in (int, float) else ""
    return text + unit + (", or None" if optional else "")


def _plain(value: Any, kind: type) -> Any:
    """`value` as `kind`, or ValueError. Text is read; a plain value of another type is refused."""
    if isinstance(value, str):
        text = value.strip()
        if kind is bool:
            if text.lower() not in _TRUE | _FALSE:
                raise ValueError
            return text.lower() in _TRUE
        return value if kind is str else kind(text)
    if isinstance(value, bool) != (kind is bool):
        raise ValueError
    if kind is float and isinstance(value, int):
        return float(value)
    if not isinstance(value, kind):
        raise ValueError
    return value


def convert(options: type, name: str, value: Any) -> Any:
    """`value` (text from the command line or a plain value from YAML) as the type of field `name`, within its limits.

    Raises:
        OptionError: wrong type, outside the limits, or not one of the choices.
    """
    spec = spec_of(options, name)
    kind, optional = kind_of(options, name)
    value = spec.metadata["aliases"].get(str(value).lower(), value)
    if value is None or (isinstance(value, str) and value.strip().lower() in _NONE):
        if optional:
            return None
        raise OptionError(f"{name} must be {describe(spec, kind, optional)}, got nothing")
    limits = spec.metadata
    try:
        result = _plain(value, kind)
        if limits["choices"] and result not in limits["choices"]:
            raise ValueError
        if kind in (int, float):
            too_low = limits["low"] is not None and result < limits["low"]
            too_high = limits["high"] is not None and result > limits["high"]
            too_high = too_high or (limits["below"] is not None and result >= limits["below"])
            if too_low or too_high or not math.isfinite(result):
                raise ValueError
    except ValueError:
        close = hint(str(value), limits["choices"]) if limits["choices"] else ""
        raise OptionError(f"{name} must be {describe(spec, kind, optional)}, got {value!r}{close}") from None
    return result


def names_of(options: type) -> list[str]:
    """The names of all options of a class, in order."""
    return [spec.name for spec in fields(options)]


def spec_of(options: type, name: str) -> Field[Any]:
    """The declaration of one option."""
    return next(spec for spec in fields(options) if spec.name == name)


def convert_all(options: type, values: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Every entry of `values` converted; errors begin with `where` (for example "train.yaml: ").

    Raises:
        OptionError: as `convert`, and for names that are no options.
    """
    known = names_of(options)
    for name in values:
        if name not in known:
            raise OptionError(f"{where}unknown option {name}{hint(name, known)}")
    try:
        return {name: convert(options, name, value) for name, value in values.items()}
    except OptionError as error:
        raise OptionError(f"{where}{error}") from None


def _shown(value: Any) -> str:
    return (
        str(value).lower()
        if isinstance(value, bool)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )


def help_text(options: type, width: int = 100) -> str:
    """All options of a class, by section: name, meaning, unit, what is allowed, and default."""
    lines: list[str] = []
    section = None
    for spec in fields(options):
        if spec.metadata["section"] != section:
            section = spec.metadata["section"]
            lines += ["", section]
        kind, _ = kind_of(options, spec.name)
        metavar = {int: "=N", float: "=X", str: "=TEXT", bool: "=false" if spec.default is True else ""}[kind]
        notes = [spec.metadata["unit"]] if spec.metadata["unit"] else []
        if spec.metadata["choices"]:
            notes.append(" | ".join(spec.metadata["choices"]))
        default = spec.metadata["unset"] if spec.default is None else _shown(spec.default)
        if default:
            notes.append(f"default: {default}")
        text = f"{spec.metadata['meaning']} [{'; '.join(notes)}]" if notes else spec.metadata["meaning"]
        first = f"  --{spec.name}{metavar}"
        body = textwrap.wrap(text, width - 30, break_on_hyphens=False)
        lines += [f"{first:<29} {body[0]}"] + [" " * 30 + line for line in body[1:]]
    return "\n".join(lines)
