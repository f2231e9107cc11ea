"""Masks what looks like a password, key or token, and breaks markup, in texts for assistants."""

from __future__ import annotations

import math
import re
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from eroica.model.words import clean, sentence

MASK = "***"
#: Keys of known forms.
_KNOWN = re.compile(
    r"\b(?:sk|pk|rk)[-_][A-Za-z0-9_\-]{12,}|\bgh[pousr]_\w{16,}|\bgithub_pat_\w{16,}|\bglpat-[\w\-]{12,}|\bhf_\w{16,}"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{12,}|\bAIza[\w\-]{20,}|\bxox[abprs]-[\w\-]{8,}|\beyJ[\w\-]{8,}\.[\w\-.]{8,}"
)
_CREDENTIALS = re.compile(r"(://)[^/\s:@'\"]{0,200}:[^/\s@'\"]{1,200}@")
#: A text that is assigned to a secret name.
_NAMED = re.compile(
    r"((?:passw(?:or)?d|passphrase|pwd|secret|token(?!iz)|api_?key|access_?key|private_?key|auth|credential)\w{0,40}"
    r"[\"']?\]?\s{0,8}(?::\s{0,8}\w{1,40}\s{0,8})?(?:=|:|,)=?\s{0,8}[rbufRBUF]{0,2})([\"'])(?:(?!\2).){1,400}\2",
    re.IGNORECASE,
)
_OPAQUE = re.compile(r"(?<![\w/+.\-])[A-Za-z0-9+/_\-]{20,}={0,2}(?![\w/+\-])")
#: Bits per character of a random word: names lie below 3.5, random hexadecimal digits near 3.7.
_RANDOM_BITS = 3.5
_HEX = re.compile(r"^[0-9a-fA-F]{24,}$")
#: What precedes a target in Markdown: "](address)" or "[x]: address".
_TARGET = re.compile(r"\](?=\(|:(?!:))")
#: `<` of a closing tag, of a tag that acts without attributes, or of an address.
_TAG = re.compile(
    r"<(?=[/!?]|(?:script|style|iframe|object|embed|svg|math|base|form|plaintext|textarea|title|xmp|listing|template"
    r"|no(?:script|embed|frames)|frame(?:set)?|select)\b|[a-z][a-z0-9+.\-]*:(?!:)|[^\s<>‹@]+@)",
    re.IGNORECASE,
)
_TAG_OR_NAME = re.compile(r"<(?=[a-z])", re.IGNORECASE)


def mask(text: str) -> str:
    """Return `text` with secrets replaced by "***"."""
    text = _KNOWN.sub(MASK, text)
    text = _CREDENTIALS.sub(rf"\1{MASK}@", text)
    return _OPAQUE.sub(lambda match: MASK if _is_random(match[0]) else match[0], text)


def mask_code(lines: Iterable[str]) -> list[str]:
    """Mask consecutive lines of source, and all literals of statements with a secret name in them."""
    return [mask(_NAMED.sub(rf"\1\2{MASK}\2", line)) for line in _without_literals(list(lines))]


def quoted(text: str, limit: int = 160) -> str:
    """Return a name inside backticks that it cannot end, without secrets."""
    return f"`{mask(clean(text, limit)).replace('`', chr(39))}`"


def told(text: str) -> str:
    """Return a sentence on one line, without backticks and secrets, and with markup broken.

    `](` and `]:` get a space. `<` becomes `‹` where a tag with an attribute, a closing tag or an active tag may begin;
    names such as `<locals>` and `vector<int, float>` stay.
    """
    return _without_tags(_TARGET.sub("] ", mask(sentence(text)))).replace("`", "'")


def _without_tags(text: str) -> str:
    """Return `text` in which `<` stands before a letter only if `>` follows without a `=` between them."""
    *closed, rest = _TAG.sub("‹", text).split(">")
    ends = [part.rfind("=") + 1 for part in closed]
    parts = [_TAG_OR_NAME.sub("‹", part[:end]) + part[end:] for part, end in zip(closed, ends, strict=True)]
    return ">".join([*parts, _TAG_OR_NAME.sub("‹", rest)])


def _is_random(word: str) -> bool:
    """Return whether a long word mixes digits and letters as no name does."""
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


# --- literals of source ---

_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
#: Parts of a name that make it secret: anywhere, as the last part, and behind one of these.
_SECRET = re.compile(r"passw|passphrase|passcode|secret|credential|apikey|accesskey|privatekey|authori[sz]ation")
_LAST = frozenset({"pass", "pwd", "pw", "token", "auth", "oauth", "bearer", "creds", "cred"})
_AFTER_LAST = frozenset({"value", "str", "text", "string", "key", "default", "env", "header"})
#: "key" is secret where it gets a value; "x_key" also where another argument follows.
_GIVEN, _GIVEN_OR_NEXT = re.compile(r"\s*\]?\s*(?::|=(?!=))"), re.compile(r"\s*\]?\s*(?::|,|=(?!=))")
_LITERALS = frozenset({"STRING", "FSTRING_MIDDLE"})


def _without_literals(lines: list[str]) -> list[str]:
    """Hide the literals of statements with a secret name; if Python cannot read the lines, all after a quote."""
    try:
        tokens = list(tokenize.generate_tokens(iter([f"{line}\n" for line in lines] + [""]).__next__))
    except (tokenize.TokenError, SyntaxError, ValueError, StopIteration):
        return [_after_quote(line) for line in lines]
    if any(token.type == tokenize.ERRORTOKEN or token.end[0] > len(lines) + 1 for token in tokens):
        return [_after_quote(line) for line in lines]
    for token in reversed(list(_secret_literals(tokens))):
        _hide(lines, token)
    return lines


def _after_quote(line: str) -> str:
    head, quote, _ = re.split(r"([\"'])", line, maxsplit=1) if re.search("[\"']", line) else (line, "", "")
    return f"{head}{quote}{MASK}" if quote else line


def _secret_literals(tokens: Sequence[tokenize.TokenInfo]) -> Iterator[tokenize.TokenInfo]:
    """Yield the literals of statements with a secret name."""
    statement: list[tokenize.TokenInfo] = []
    for token in tokens:
        statement.append(token)
        if token.type in (tokenize.NEWLINE, tokenize.ENDMARKER):
            if any(map(_is_secret, statement)):
                yield from (one for one in statement if tokenize.tok_name[one.type] in _LITERALS)
            statement = []


def _is_secret(token: tokenize.TokenInfo) -> bool:
    """Return whether a name, or a literal that may be the name of an entry or argument, is secret."""
    after = token.line[token.end[1] :] if token.start[0] == token.end[0] else ""
    name = token.string
    if token.type == tokenize.STRING:
        name = name.strip("'\"").replace("-", "_")
        if not name.isidentifier() or not re.match(r"\s*[\]:,)]", after):
            return False
    elif token.type != tokenize.NAME or name == "pass":
        return False
    if _SECRET.search(name.replace("_", "").lower()):
        return True
    parts = [part.lower() for part in _PART.findall(name)]
    if not parts or name == "pass":
        return False
    if parts[-1] in _LAST or (len(parts) > 1 and parts[-2] in _LAST and parts[-1] in _AFTER_LAST):
        return True
    return parts[-1] == "key" and bool((_GIVEN_OR_NEXT if len(parts) > 1 else _GIVEN).match(after))


def _hide(lines: list[str], token: tokenize.TokenInfo) -> None:
    """Replace a literal in its lines."""
    (first, begin), (last, end) = token.start, token.end
    head, tail = lines[first - 1][:begin], lines[last - 1][end:]
    if first == last:
        quote = token.string[-1] if token.type == tokenize.STRING else ""
        lines[first - 1] = f"{head}{quote}{MASK}{quote}{tail}"
        return
    lines[first - 1 : last] = [head + MASK, *[MASK] * (last - first - 1), MASK + tail]
