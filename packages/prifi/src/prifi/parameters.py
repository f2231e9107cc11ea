"""Settings that all members of a network share. Every key and signature of an epoch binds their digest."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from prifi.errors import BadConfig
from prifi.group import digest

Protection = Literal["both", "equivocation", "none"]
#: Bytes of the tag of AES-GCM (cells) and of ChaCha20-Poly1305 (links).
TAG_BYTES = 16
#: Slots whose map bits share one scalar. 120 bits of 252 are used; a garbled map passes with probability 2⁻¹³².
SLOTS_PER_SCALAR = 120
#: Names in the config file of settings that weaken the network.
INSECURE = {"protection": "insecure_protection", "shuffle_rounds": "insecure_shuffle_rounds"}


class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename=INSECURE):
    """Sizes, times (seconds) and protections of a network; `docs/commands.md` describes each.

    `protection` is "both"; "equivocation" (no blame, nothing signed in rounds); or "none".
    """

    cell_bytes: int = 1000
    down_bytes: int = 1000
    window: int = 6
    ahead: int = 100
    interval_s: float = 0.01
    offset_s: float = 0.01
    sleep_s: float = 0.1
    linger_s: float = 1.0
    minimum_set: int = 3
    resend_s: float = 1.0
    absent_s: float = 5.0
    setup_s: float = 30.0
    gather_s: float = 0.2
    shuffle_rounds: int = 128
    protection: Protection = "both"

    @property
    def blame(self) -> bool:
        """Whether disruptors are named; cells are signed for it."""
        return self.protection == "both"

    @property
    def bound(self) -> bool:
        """Whether cells open only if all clients have seen the same downstream."""
        return self.protection != "none"

    @property
    def payload_bytes(self) -> int:
        """Bytes of an opened cell."""
        return self.cell_bytes - (TAG_BYTES if self.bound else 0)

    @property
    def ahead_most(self) -> int:
        """Ciphertexts in a buffer at which the relay stops a trustee: 0.9 of the buffer."""
        return int(0.9 * self.ahead)

    @property
    def ahead_least(self) -> int:
        """Ciphertexts in a buffer at which the relay lets a trustee resume: half of what it holds when full."""
        return (self.ahead_most - 1) // 2

    def digest(self) -> bytes:
        """Return 32 bytes that bind all settings."""
        return digest("parameters", msgspec.msgpack.encode(self))

    def checked(self) -> Parameters:
        """Return the settings themselves.

        Raises:
            BadConfig: A value makes no working or no safe network.
        """
        rules = (
            (100 <= self.cell_bytes <= 65536, "cell_bytes is 100 to 65,536"),
            (
                self.cell_bytes >= 160 or not self.blame,
                "cell_bytes is at least 160 with blame: an accusation needs the room",
            ),
            (64 <= self.down_bytes <= 1 << 20, "down_bytes is 64 to 1,048,576"),
            (1 <= self.window <= 64, "window is 1 to 64"),
            (2 * self.window + 4 <= self.ahead <= 10_000, "ahead is at least 2·window + 4, at most 10,000"),
            (self.minimum_set >= 2, "minimum_set is at least 2: one client alone has no anonymity"),
            (0 <= self.offset_s <= 1, "offset_s is 0 to 1"),
            (
                all(0 <= getattr(self, name) <= 3600 for name in self.__struct_fields__ if name.endswith("_s")),
                "times are 0 to 3,600 seconds",
            ),
            (self.sleep_s > 0 and self.setup_s > 0, "sleep_s and setup_s are more than 0"),
            (0 < self.resend_s < self.absent_s, "resend_s is more than 0 and less than absent_s"),
            (1 <= self.shuffle_rounds <= 256, "shuffle_rounds is 1 to 256"),
            (self.protection in get_args(Protection), "protection is both, equivocation or none"),
        )
        for holds, rule in rules:
            if not holds:
                raise BadConfig(rule)
        return self
