"""Who may do what: SAS tokens and keys against policies (S2; WIRE section 2).

A policy belongs to a namespace or to one entity. A token that holds gives its policy's
rights for the address it was put for, until it expires.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from twinbus.core import errors, names, sas
from twinbus.core.descriptions import LISTEN, MANAGE, SEND, AuthorizationRule
from twinbus.core.errors import BusError
from twinbus.engine.entities import Queue
from twinbus.engine.namespace import Namespace
from twinbus.engine.topics import Topic

#: Every namespace has it, with the broker's own key.
ROOT_POLICY = "RootManageSharedAccessKey"
ALL_RIGHTS = frozenset((MANAGE, SEND, LISTEN))


@dataclass(frozen=True, slots=True)
class Claim:
    """Rights on a path and everything below it, until a time (seconds; 0: for good)."""

    path: str
    rights: frozenset[str]
    expires_s: int = 0
    #: The queue or topic whose own policy gave it. Others may have names below that one's.
    owner: str | None = None

    def allows(self, path: str, right: str, now_s: int) -> bool:
        if self.expires_s and now_s >= self.expires_s:
            return False
        if self.owner is not None and names.owner(path) != self.owner:
            return False
        below = not self.path or path == self.path or path.startswith(self.path + "/")
        return below and (right in self.rights or MANAGE in self.rights)


class Guard:
    """The policies of one namespace."""

    def __init__(
        self, namespace: Namespace, policies: list[AuthorizationRule], *, checks: bool
    ) -> None:
        self._namespace = namespace
        self._policies = {policy.name.casefold(): policy for policy in policies}
        #: False only in development mode, which is asked for by name and on loopback.
        self.checks = checks

    def check_password(self, user: str, password: str) -> Claim | None:
        """SASL PLAIN: a policy's name and one of its keys, for the whole namespace."""
        if not self.checks:
            return Claim("", ALL_RIGHTS)
        policy = self._policies.get(user.casefold())
        if policy is None or not any(
            sas.equal(password, key) for key in (policy.primary_key, policy.secondary_key) if key
        ):
            return None
        return Claim("", frozenset(policy.rights))

    def check_token(self, token: str, audience: str, now_s: int) -> Claim:
        """Give the claim that a token makes for an address; refuse what does not hold."""
        path = names.fold(names.strip_authority(audience))
        if not self.checks:
            return Claim(path, ALL_RIGHTS)
        try:
            parsed = sas.parse_token(token)
        except ValueError as error:
            raise BusError(errors.UNAUTHORIZED, f"InvalidSignature: {error}.") from error
        if now_s >= parsed.expiry_s:
            raise BusError(
                errors.UNAUTHORIZED, "ExpiredToken: the token has expired; make a new one."
            )
        policy, owner = next(
            (
                (policy, owner)
                for policy, owner in self._policies_for(parsed.key_name, path)
                for key in (policy.primary_key, policy.secondary_key)
                if key and parsed.signed_by(key)
            ),
            (None, None),
        )
        if policy is None:
            raise BusError(
                errors.UNAUTHORIZED,
                "InvalidSignature: the token has an invalid signature, or its key name is unknown.",
            )
        if not parsed.covers(audience):
            raise BusError(
                errors.UNAUTHORIZED,
                f"The token was made for '{parsed.resource}' and does not cover '{audience}'.",
            )
        return Claim(path, frozenset(policy.rights), parsed.expiry_s, owner)

    def _policies_for(self, name: str, path: str) -> Iterator[tuple[AuthorizationRule, str | None]]:
        """Every policy of that name that can speak for the path, with the entity whose it is.

        An entity's own may be called like one of the namespace: it does not take its place.
        """
        folded = name.casefold()
        owner = names.owner(path)
        entity = self._namespace.find(owner)
        if isinstance(entity, Queue | Topic):
            for rule in entity.description.authorization_rules:
                if rule.name.casefold() == folded:
                    yield rule, owner
        if folded in self._policies:
            yield self._policies[folded], None
