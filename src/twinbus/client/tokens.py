"""The tokens that a connection shows over `$cbs`, and when to show the next one.

An entity and the time go in; a token comes out where one is due. Sends nothing.
"""

from __future__ import annotations

import math
from typing import Final

from twinbus.client.endpoint import Endpoint
from twinbus.core import names, sas

TOKEN_LIFE_S: Final = 3600
# A token is replaced well before its end, so that a slow answer or a clock that is some
# minutes off does no harm.
_RENEW_AFTER: Final = 0.6


class Tokens:
    def __init__(self, endpoint: Endpoint, life_s: int = TOKEN_LIFE_S) -> None:
        self._endpoint = endpoint
        self._life_s = life_s
        self._renew_s: dict[str, float] = {}

    def audience(self, entity: str) -> str:
        """What a token for this entity is for; sub-queues belong to their entity."""
        return f"sb://{self._endpoint.host}/{names.parse_address(entity).entity}"

    def is_due(self, audience: str, now_s: float) -> bool:
        return now_s >= self._renew_s.get(audience, -math.inf)

    def all_due(self, now_s: float) -> list[str]:
        """The audiences whose token was shown and should be replaced."""
        return [audience for audience in self._renew_s if self.is_due(audience, now_s)]

    def make(self, audience: str, now_s: float) -> str:
        if self._endpoint.signature:
            return self._endpoint.signature
        expiry_s = int(now_s) + self._life_s
        return sas.make_token(audience, self._endpoint.key_name, self._endpoint.key, expiry_s)

    def shown(self, audience: str, now_s: float) -> None:
        """The broker took a token. A signature made elsewhere cannot be renewed here."""
        renewable = not self._endpoint.signature
        self._renew_s[audience] = now_s + self._life_s * _RENEW_AFTER if renewable else math.inf
