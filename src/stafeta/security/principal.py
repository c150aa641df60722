"""Who asks."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Principal:
    """A verb is carried out for one of these. `user` is empty where no users are configured."""

    user: str = ""
    client: str = ""  # as the client calls itself, where a connection is one client
    door: str = ""
    address: str = ""
    credential: str = ""  # what it was identified by: password, certificate, "token NAME", ...
    expires: float = 0.0  # when that is no longer good, in seconds since 1970; 0: it does not expire


ANYONE = Principal()
