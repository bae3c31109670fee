"""Tokens, and how often each of them may be used. Independent of HTTP, streams and events."""

from __future__ import annotations

from tidemill.server.access.rates import RateLimits
from tidemill.server.access.tokens import LOCAL, AccessToken, Principal, Scope, Tokens

__all__ = ["LOCAL", "AccessToken", "Principal", "RateLimits", "Scope", "Tokens"]
