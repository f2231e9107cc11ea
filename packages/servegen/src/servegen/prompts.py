"""Makes prompts that tokenise to an asked length on the server's own tokeniser.

The server counts the tokens of a few probes. An alphabet of words fits if each word costs one token, whatever its
neighbours are. The tokens that the server adds (chat template) are the count of an empty prompt.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from servegen.arrivals import client_key

#: Alphabets in order of preference: common words with a space, for subword tokenisers; letters, for byte tokenisers.
_COMMON = (
    "the and that have for not with you this but his from they say her she will one all would there their what "
    "out about who get which when make can like time just him know take people into year your good some could "
    "them see other than then now look only come its over think also back after use two how our work first "
    "well way even new want because"
)
ALPHABETS = {"words": tuple(f" {word}" for word in _COMMON.split(" ")), "letters": tuple("abcdefghijklmnopqrstuvwxyz")}
#: Words of the two probes whose difference shows the tokens of a word, and of the third that confirms it.
PROBES = (40, 200, 333)


@dataclass(frozen=True)
class PromptMaker:
    """Makes prompts."""

    alphabet: str = "words"  #: Name of the alphabet
    added: float = 0.0  #: Tokens that the server adds to each prompt
    per_word: float = 1.0  #: Tokens of a word; 1 if the alphabet fits
    checked: bool = False  #: Whether the server's counts confirmed this

    def words(self, key: int, count: int) -> str:
        """Return the first words of the endless text of one key, so that no prefix cache helps unequal keys."""
        alphabet = ALPHABETS[self.alphabet]
        picks = np.random.Generator(np.random.PCG64(key)).integers(0, len(alphabet), max(count, 0))
        return "".join([alphabet[pick] for pick in picks.tolist()])

    def prompt(self, tokens: int, key: int, client: str = "", shared: int = 0) -> str:
        """Return a prompt of so many tokens, of which the first `shared` are the client's system prompt."""
        count = max(round((tokens - self.added) / self.per_word), 1)
        common = min(round(shared / self.per_word), count)
        return (self.words(client_key(client), common) if common else "") + self.words(key, count - common)


async def learn_prompts(count_tokens: Callable[[str], Awaitable[int | None]]) -> PromptMaker:
    """Return the maker whose alphabet fits the server's tokeniser.

    Args:
        count_tokens: Sends a prompt and returns how many prompt tokens the server counts, None if it does not say.
    """
    best: tuple[float, PromptMaker] | None = None
    for name in ALPHABETS:
        maker = PromptMaker(name)
        counts: list[Any] = [await count_tokens(maker.words(seed, size)) for seed, size in enumerate(PROBES)]
        if None in counts:
            return maker
        per_word = (counts[1] - counts[0]) / (PROBES[1] - PROBES[0])
        added = counts[0] - per_word * PROBES[0]
        miss = abs(counts[2] - added - per_word * PROBES[2])
        found = PromptMaker(name, added, per_word, checked=True)
        if per_word == 1 and miss == 0:
            return found
        if per_word > 0 and (best is None or (abs(per_word - 1), miss) < (best[0], 0)):
            best = abs(per_word - 1), found
    return best[1] if best else PromptMaker()
