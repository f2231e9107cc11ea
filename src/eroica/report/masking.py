"""What looks like a password, key or token is not passed on. Source and names are input: anything may stand there.

Nor is markup that a page would fetch, follow or run, if it showed a sentence as Markdown or HTML.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

from eroica.report.literals import LiteralHider
from eroica.report.words import clean, sentence

MASK = "***"
#: Keys that say by their form what they are.
_KNOWN = re.compile(
    r"\b(?:sk|pk|rk)[-_][A-Za-z0-9_\-]{12,}|\bgh[pousr]_\w{16,}|\bgithub_pat_\w{16,}|\bglpat-[\w\-]{12,}|\bhf_\w{16,}"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{12,}|\bAIza[\w\-]{20,}|\bxox[abprs]-[\w\-]{8,}|\beyJ[\w\-]{8,}\.[\w\-.]{8,}"
)
_CREDENTIALS = re.compile(r"(://)[^/\s:@'\"]{0,200}:[^/\s@'\"]{1,200}@")
#: A text given to something whose name speaks of a secret.
_NAMED = re.compile(
    r"((?:passw(?:or)?d|passphrase|pwd|secret|token(?!iz)|api_?key|access_?key|private_?key|auth|credential)\w{0,40}"
    r"[\"']?\]?\s{0,8}(?::\s{0,8}\w{1,40}\s{0,8})?(?:=|:|,)=?\s{0,8}[rbufRBUF]{0,2})([\"'])(?:(?!\2).){1,400}\2",
    re.IGNORECASE,
)
_OPAQUE = re.compile(r"(?<![\w/+.\-])[A-Za-z0-9+/_\-]{20,}={0,2}(?![\w/+\-])")
#: Bits a character from which a long word is no word: names lie below 3.5, random hexadecimal digits near 3.7.
_RANDOM_BITS = 3.5
_HEX = re.compile(r"^[0-9a-fA-F]{24,}$")
#: What stands before a target in Markdown: of a link or picture, or of a name given to an address, "[x]: address".
_TARGET = re.compile(r"\](?=\(|:(?!:))")
#: `<` of a tag that ends another, of one that does something without attributes, or of an address.
_TAG = re.compile(
    r"<(?=[/!?]|(?:script|style|iframe|object|embed|svg|math|base|form|plaintext|textarea|title|xmp|listing|template"
    r"|no(?:script|embed|frames)|frame(?:set)?|select)\b|[a-z][a-z0-9+.\-]*:(?!:)|[^\s<>‹@]+@)",
    re.IGNORECASE,
)
_TAG_OR_NAME = re.compile(r"<(?=[a-z])", re.IGNORECASE)


def mask(text: str) -> str:
    """`text` with what looks like a secret replaced by "***"."""
    text = _KNOWN.sub(MASK, text)
    text = _CREDENTIALS.sub(rf"\1{MASK}@", text)
    return _OPAQUE.sub(lambda match: MASK if _is_random(match[0]) else match[0], text)


def mask_code(lines: Iterable[str]) -> list[str]:
    """The same for lines of source that follow each other: also texts given to something named like a secret."""
    hider = LiteralHider(MASK)
    return [mask(_NAMED.sub(rf"\1\2{MASK}\2", hider.hide(line))) for line in lines]


def quoted(text: str, limit: int = 160) -> str:
    """A name inside backticks: it cannot end them, nor hold a secret."""
    return f"`{mask(clean(text, limit)).replace('`', chr(39))}`"


def told(text: str) -> str:
    """A sentence on one line, without backticks and secrets, and with markup broken.

    `](` and `]:` get a space, since Markdown decodes what follows them. `<` becomes `‹` where a tag may begin that has
    an attribute, ends another or works without one; names such as `<locals>` and `vector<int, float>` stay.
    """
    return _without_tags(_TARGET.sub("] ", mask(sentence(text)))).replace("`", "'")


def _without_tags(text: str) -> str:
    """`text` in which `<` stands before a letter only if `>` follows it, and no `=` comes before that.

    HTML takes an attribute's value only after `=`, and everything up to the first `>` is the tag's, `<` included.
    """
    *closed, rest = _TAG.sub("‹", text).split(">")
    ends = [part.rfind("=") + 1 for part in closed]
    parts = [_TAG_OR_NAME.sub("‹", part[:end]) + part[end:] for part, end in zip(closed, ends, strict=True)]
    return ">".join([*parts, _TAG_OR_NAME.sub("‹", rest)])


def _is_random(word: str) -> bool:
    """Digits and letters of a long word mixed as no name mixes them."""
    if _HEX.match(word):
        return any(character.isdigit() for character in word)
    digits = sum(character.isdigit() for character in word)
    cases = sum(a.islower() != b.islower() for a, b in pairwise(word) if a.isalpha() and b.isalpha())
    if digits < 2 and cases < len(word) / 4:
        return False
    if re.fullmatch(r"[A-Za-z]*(?:[_/\-][A-Za-z]*)*\d*", word):  # words and a number at the end
        return False
    bits = -sum(n / len(word) * math.log2(n / len(word)) for n in Counter(word).values())
    return bits >= _RANDOM_BITS and (digits + cases) >= len(word) / 5
