"""A password or an account that is over, told by what its server says: there is no other sign of it in the protocol.

With a key the login itself succeeds; the session then ends at once with a line on its standard error, or with none behind a
banner (OpenSSH with PAM: `sshd` session.c, `pam_unix`).
"""

from __future__ import annotations

import re

from tidemark.errors import PermissionDeniedError

_OVER = re.compile(r"(password|account) has expired|change your password|password change required", re.IGNORECASE)


def expired(name: str, said: str) -> PermissionDeniedError | None:
    """The error of a login whose password or account is over, where what the server `said` to it means that."""
    if not _OVER.search(said):
        return None
    line = next(line.strip() for line in said.splitlines() if _OVER.search(line))
    return PermissionDeniedError(
        f"{name} may not log in any more: {line}",
        hint="set a new password for that user there (passwd), or make its account last longer (chage -E -1 USER)",
        subject=name,
    )
