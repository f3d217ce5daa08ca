"""What a text from a server has cost."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Traffic:
    """The requests for one text.

    requests: the number of answered ones. retries: of those that broke off, or, with method="alternatives", that were
    repeated. written: tokens that were received, of which the text keeps a part. thinned: of those, the tokens that
    were drawn again because a ban had left only a part of their probability.
    """

    requests: int = 0
    retries: int = 0
    written: int = 0
    thinned: int = 0
