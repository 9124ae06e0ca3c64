"""Recognize an expired password or account by the server's text: the protocol has no other sign of it.

With a key the login itself succeeds. The session then ends at once with a line on its standard error, or without one after
a banner (OpenSSH with PAM: `sshd` session.c, `pam_unix`).
"""

from __future__ import annotations

import re

from tidemark.errors import PermissionDeniedError

_OVER = re.compile(r"(password|account) has expired|change your password|password change required", re.IGNORECASE)


def expired(name: str, said: str) -> PermissionDeniedError | None:
    """Return the error for an expired password or account, if the server's text `said` reports one; else None."""
    if not _OVER.search(said):
        return None
    line = next(line.strip() for line in said.splitlines() if _OVER.search(line))
    return PermissionDeniedError(
        f"{name} may not log in any more: {line}",
        hint="set a new password for that user there (passwd), or make its account last longer (chage -E -1 USER)",
        subject=name,
    )
