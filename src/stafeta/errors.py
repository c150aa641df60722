"""What can go wrong, each with a sentence that a person can act on."""

from collections.abc import Sequence
from typing import Any, Final

EXIT_FATAL: Final = 70  # the exit code of a broker that cannot go on


class StafetaError(Exception):
    """Base of every error that Stafeta raises on purpose."""


class ConfigError(StafetaError):
    """An option has a value that cannot be used."""


class InvalidName(StafetaError):
    """A topic name or filter that is not allowed."""


class InvalidClient(InvalidName):
    """A client id that is not allowed."""


class LimitReached(StafetaError):
    """There are as many of something as the configuration allows."""


class NotAuthenticated(StafetaError):
    """Nobody knows who asks."""


class NotPermitted(StafetaError):
    """It is known who asks, and he may not do this."""


class InvalidMessage(StafetaError):
    """A payload that is too large, or is not of the kind it claims to be."""


class InvalidDatagram(StafetaError):
    """A device's datagram that cannot be read."""


class InvalidStream(StafetaError):
    """A connection's bytes that cannot be followed any further. `before` is what was read of them up to there."""

    def __init__(self, sentence: str, before: Sequence[Any] = ()) -> None:
        super().__init__(sentence)
        self.before = before


class InvalidCommand(InvalidStream):
    """A subscriber says what is no command."""


class InvalidDelivery(InvalidStream):
    """A broker says what is no delivery."""


class InvalidFrame(StafetaError):
    """A connection's bytes that are no frame, or a frame whose body cannot be read."""


class InvalidRequest(StafetaError):
    """A request that cannot be read, or asks for what does not go together."""


class InvalidSchema(StafetaError):
    """Arrow data whose columns are not those of messages."""


class TakenOver(StafetaError):
    """Another program, or another connection, has its place now."""


class NoSuchTopic(StafetaError):
    """The topic does not exist."""


class NotSubscribed(StafetaError):
    """The client holds no subscription that covers this."""


class NoSuchOffset(StafetaError):
    """An offset that the topic has not reached."""


class OutOfSequence(StafetaError):
    """A producer's sequence has a gap: its earlier messages have not been stored."""

    def __init__(self, sentence: str, expected: int) -> None:
        super().__init__(sentence)
        self.expected = expected


class AlreadyWritten(OutOfSequence):
    """Something else was written before under the number that a write has, or under a later one."""


class NotStaged(StafetaError):
    """A transaction is to be committed with parts that are not there."""


class AlreadyConnected(StafetaError):
    """Another connection holds this client id."""


class Lagging(StafetaError):
    """A live subscription fell further behind than is allowed."""


class DataLoss(StafetaError):
    """Messages that were to be read are gone."""


class Unsound(StafetaError):
    """What the log and the lake hold is not what they should."""


class InvalidQuery(StafetaError):
    """A statement of SQL that cannot be carried out."""


class JavaMissing(StafetaError):
    """Spark cannot start: there is no Java, or it is too old."""


class BrokerClosed(StafetaError):
    """The broker is shutting down and takes nothing more."""


class StoreError(StafetaError):
    """The store could not do what was asked; nothing was changed."""


class StoreFull(StoreError):
    """No room is left on the device."""


class StoreReadOnly(StoreError):
    """The data folder cannot be written."""


class StoreDamaged(StoreError):
    """Stored bytes are not what was written. Where it is known which messages that concerns: `topic`, and the offsets
    from `start` up to, not including, `stop`."""

    def __init__(self, sentence: str, topic: str = "", start: int = 0, stop: int = 0) -> None:
        super().__init__(sentence)
        self.topic = topic
        self.start = start
        self.stop = stop


class StoreLocked(StoreError):
    """Another broker has the data folder open."""


class StoreVersion(StoreError):
    """The data folder was written by a newer version."""


class StoreConflict(StoreError):
    """An append expected another offset than the log has."""


class BackupError(StafetaError):
    """A backup could not be made, read or removed."""


class NoReply(StafetaError):
    """The broker did not answer within the time and retries allowed."""


class Unavailable(NoReply):
    """The broker is there, but cannot do it now: its disk is full, or it is shutting down."""


class RateLimited(Unavailable):
    """The client asks for more, or sends more, in a second than it may; later it may again."""


class Disconnected(StafetaError):
    """The connection to the broker is gone."""


class Untrusted(Disconnected):
    """Who answers at the broker's address is not known to be the broker."""


class Forked(StafetaError):
    """A client is used in a process that was forked from the one that made it."""


class Cancelled(StafetaError):
    """A queue was cancelled, and gives nothing more."""


class WrongRole(StafetaError):
    """A consumer does not push, and a producer does not pull."""


class Refused(StafetaError):
    """The broker answered no."""
