"""Reads YAML and JSON as kubectl does, with line numbers for errors and labels from trailing comments.

kubectl reads YAML with go-yaml 2 (YAML 1.1 with deviations) and converts it to JSON. The rules that matter here:
bare y, n, on, off, yes and no are booleans; 0400, 0o400 and 0x100 are integers; a bare date is a string; 08 and 1e3
are numbers; keys become strings; a key twice in one mapping is an error; merge keys (<<) work.
"""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from cloudeval.errors import ReadError

Path = tuple[str | int, ...]

#: Characters of an answer that are read at all. Real manifests have a few thousand.
MAX_CHARACTERS = 400_000
#: Values after aliases are expanded. A YAML bomb exceeds it within a few lines; real manifests have hundreds.
MAX_VALUES = 50_000
#: Nesting of mappings and lists. Kubernetes objects need about 20.
MAX_DEPTH = 60

_WORDS = {"y yes true on": True, "n no false off": False, "null": None}
_FORMS = (str, str.upper, str.title)
_PLAIN = {form(word): value for words, value in _WORDS.items() for word in words.split() for form in _FORMS}
_PLAIN |= {"": None, "~": None}
_NOT_NUMBERS = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_INTEGER = re.compile(r"[-+]?(0[xX][0-9a-fA-F]+|0[bB][01]+|0[oO]?[0-7]+|0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_LABEL_TEXT = r"\s#\s*(?P<label>\*|(?:\w+\s+)?in\s*\[.*\])\s*$"
_LABEL = re.compile(rf"[\s,\]}}]*{_LABEL_TEXT}")


@dataclass(frozen=True)
class Label:
    """The values that a reference accepts at one leaf: any, or one of a set."""

    any_value: bool = False
    values: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Document:
    """One YAML document: its value, and the labels of its leaves by path."""

    value: Any
    labels: dict[Path, Label] = field(default_factory=dict)


def read(text: str, *, labels: bool = False, json_first: bool = True) -> list[Document]:
    """Return the documents of the text, empty ones left out.

    Args:
        text: YAML, or one or several JSON values.
        labels: Read labels from trailing comments, as references carry them.
        json_first: Take a text that starts with `{` for JSON, as kubectl does.

    Raises:
        ReadError: The text is not valid, has a key twice, or is too large after aliases are expanded.
    """
    if len(text) > MAX_CHARACTERS:
        raise ReadError(f"the text has {len(text)} characters; at most {MAX_CHARACTERS} are read")
    if json_first and text.lstrip()[:1] == "{" and not labels:
        return _read_json(text)
    return [document for document in _Builder(text, labels).documents() if document.value is not None]


def values(text: str) -> list[Any]:
    """Return the values of the documents in the text."""
    return [document.value for document in read(text)]


def scalar(text: str) -> Any:
    """Return the value of an unquoted scalar as go-yaml resolves it."""
    if text in _PLAIN:
        return _PLAIN[text]
    if _NOT_NUMBERS.fullmatch(text):
        raise ReadError(f"{text} has no JSON form")
    if text[0] not in "+-.0123456789":
        return text
    plain = text.replace("_", "")
    if _INTEGER.fullmatch(plain):
        sign, digits = (-1 if plain[0] == "-" else 1), plain.lstrip("+-").lower()
        octal = len(digits) > 1 and digits.isdigit() and digits[0] == "0"
        number = sign * (int(digits, 8) if octal else int(digits, 0))
        return number if -(2**63) <= number < 2**64 else float(number)
    if _FLOAT.fullmatch(plain) and not math.isinf(exact := float(plain)):
        return int(exact) if exact.is_integer() and abs(exact) < 2**53 else exact
    return text


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ReadError(f'the key "{key}" stands twice in one mapping')
        result[key] = value
    return result


def _read_json(text: str) -> list[Document]:
    """Return JSON documents."""
    decoder = json.JSONDecoder(object_pairs_hook=_pairs)
    documents: list[Document] = []
    position = 0
    while position < len(text):
        if text[position].isspace():
            position += 1
            continue
        try:
            value, position = decoder.raw_decode(text, position)
        except (json.JSONDecodeError, RecursionError) as error:
            first = "a text that starts with { must be JSON; kubectl reads nothing else there"
            later = "after a JSON document only further JSON may follow; kubectl refuses `---` there"
            raise ReadError(later if documents else first) from error
        documents.append(Document(value))
    return documents


class _Builder:
    """Builds values from libyaml's events, which limits depth, size and duplicate keys in one pass."""

    def __init__(self, text: str, labels: bool) -> None:
        self.text_lines = text.splitlines() if labels else []
        self.labelled = labels
        self.events = self._parse(text)
        self.count = 0

    @staticmethod
    def _parse(text: str) -> Iterator[Any]:
        try:
            yield from yaml.parse(text, Loader=yaml.CSafeLoader)
        except yaml.MarkedYAMLError as error:
            line = getattr(error.problem_mark, "line", -1) + 1 or None
            raise ReadError(error.problem or "not valid YAML", line) from error
        except (yaml.YAMLError, UnicodeError, ValueError) as error:
            raise ReadError(f"not valid YAML: {str(error).splitlines()[0]}") from error

    def documents(self) -> Iterator[Document]:
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                self.labels: dict[Path, Label] = {}
                self.anchors: dict[str, tuple[Any, int]] = {}
                value = self._node(next(self.events), ())
                yield Document(value, self.labels)

    def _node(self, event: Any, path: Path) -> Any:
        self._grow(1, event)
        line = event.start_mark.line + 1
        if len(path) > MAX_DEPTH:
            raise ReadError(f"nested deeper than {MAX_DEPTH} levels", line)
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self.anchors:
                raise ReadError(f'unknown anchor "{event.anchor}"', line)
            value, size = self.anchors[event.anchor]
            self._grow(size, event)
            return value
        before = self.count
        if isinstance(event, yaml.ScalarEvent):
            value = self._scalar(event)
            self._label(event, path)
        elif isinstance(event, yaml.SequenceStartEvent):
            value = []
            while not isinstance(child := next(self.events), yaml.SequenceEndEvent):
                value.append(self._node(child, (*path, len(value))))
        else:
            value = self._mapping(path)
        if event.anchor:
            self.anchors[event.anchor] = (value, self.count - before)
        return value

    def _mapping(self, path: Path) -> dict[str, Any]:
        result: dict[str, Any] = {}
        merged: list[Any] = []
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            line = event.start_mark.line + 1
            if isinstance(event, yaml.ScalarEvent) and event.value == "<<" and event.implicit[0]:
                source = self._node(next(self.events), (*path, "<<"))
                merged.extend(source if isinstance(source, list) else [source])
                continue
            key = self._key(self._node(event, (*path, "?")), line)
            if key in result:
                raise ReadError(f'the key "{key}" stands twice in one mapping', line)
            result[key] = self._node(next(self.events), (*path, key))
        for source in merged:
            if not isinstance(source, dict):
                raise ReadError("a merge key (<<) needs a mapping")
            for key, value in source.items():
                result.setdefault(key, value)
        return result

    @staticmethod
    def _key(key: Any, line: int) -> str:
        if isinstance(key, bool):
            return "true" if key else "false"
        if isinstance(key, (str, int, float)):
            return str(key)
        raise ReadError("a key must be a string", line)

    def _scalar(self, event: Any) -> Any:
        if event.tag is None and event.implicit[0]:
            return scalar(event.value)
        kind = (event.tag or "!").removeprefix("tag:yaml.org,2002:")
        if kind in ("!", "str", "binary"):
            return event.value
        if kind in ("int", "float", "bool", "null"):
            return scalar(event.value)
        raise ReadError(f"the tag {event.tag} has no JSON form", event.start_mark.line + 1)

    def _label(self, event: Any, path: Path) -> None:
        if not self.labelled or (path and path[-1] == "?"):
            return
        if event.style in ("|", ">"):
            rest = self.text_lines[event.start_mark.line][event.start_mark.column :].lstrip("|>+-0123456789")
        elif event.end_mark.line < len(self.text_lines):
            rest = self.text_lines[event.end_mark.line][event.end_mark.column :]
        else:
            return
        if found := _LABEL.match(rest):
            self.labels[path] = _read_label(found["label"])

    def _grow(self, by: int, event: Any) -> None:
        self.count += by
        if self.count > MAX_VALUES:
            raise ReadError(f"more than {MAX_VALUES} values after aliases are expanded", event.start_mark.line + 1)


def _read_label(text: str) -> Label:
    """Return the label of a comment: `*`, or `in [a, b]` with an optional name before `in`."""
    if text.strip() == "*":
        return Label(any_value=True)
    return Label(values=tuple(next(_Builder(text[text.index("[") :], False).documents()).value))


def strip_labels(text: str) -> str:
    """Return the reference text without its labels, as an answer would be written."""
    return "\n".join(re.sub(rf"\s*{_LABEL_TEXT}", "", line) for line in text.split("\n"))
