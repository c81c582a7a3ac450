"""`python -m tests.security.leaky_broker serve …`: the broker, but it logs every token it reads.

The fault that the search for secrets must find.
"""

from __future__ import annotations

import logging

from twinbus.core import sas

_honest = sas.parse_token


def parse_token(token: str) -> sas.SasToken:
    logging.getLogger("twinbus.leak").debug("a token came: %s", token)
    return _honest(token)


if __name__ == "__main__":
    sas.parse_token = parse_token
    from twinbus.cli.main import main

    main()
