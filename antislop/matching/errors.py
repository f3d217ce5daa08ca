"""Errors of bans and of lists of bans."""

from __future__ import annotations

from antislop.errors import InputError


class BanError(InputError):
    """Raised for a ban, a list or a file of bans that can't be used."""


class SlowError(BanError):
    """Raised for a regex that takes too long even on a few characters."""
