"""What batches hold, as text."""

from stafeta.message import Batch


def texts(batches: list[Batch]) -> list[str]:
    """Each message as topic=payload, in the order of the batches."""
    return [f"{batch.topic}={payload.decode()}" for batch in batches for payload in batch.payloads]


def interleaved(batches: list[Batch] | None) -> list[str]:
    """The same, in the order of publication, which is how a consumer's batches are meant."""
    assert batches is not None, "it has to be read from the store"
    positions = [position for batch in batches for position in batch.positions]
    return [text for _, text in sorted(zip(positions, texts(batches), strict=True))]
