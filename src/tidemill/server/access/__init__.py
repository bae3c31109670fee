"""Who may ask: tokens and how often each of them may be used. Knows nothing of HTTP, streams or events."""

from __future__ import annotations

from tidemill.server.access.rates import RateLimits
from tidemill.server.access.tokens import LOCAL, Principal, Scope, Token, Tokens

__all__ = ["LOCAL", "Principal", "RateLimits", "Scope", "Token", "Tokens"]
