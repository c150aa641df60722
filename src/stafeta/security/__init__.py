"""Who may come in, and what he may do: users, credentials, rules. No sockets, and nothing of the broker's.

with no users:      security = Security()               principal = ANYONE, and nothing is asked or checked
with a users' file: security = Security(Users.load(path))
a door:             principal = await security.authenticate(door="flight", address=peer, token=token)
                    verbs = broker.for_principal(principal)
"""

from stafeta.errors import NotAuthenticated, NotPermitted
from stafeta.security.principal import ANYONE, Principal
from stafeta.security.security import Security
from stafeta.security.users import Role, Token, User, Users

__all__ = [
    "ANYONE",
    "NotAuthenticated",
    "NotPermitted",
    "Principal",
    "Role",
    "Security",
    "Token",
    "User",
    "Users",
]
