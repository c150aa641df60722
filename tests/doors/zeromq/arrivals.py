"""What has arrived on a topic."""

from stafeta import Client, Message


def everything(client: Client, topic: str) -> list[Message]:
    """All messages that are there, acknowledged."""
    found: list[Message] = []
    while batch := client.get_many(topic):
        client.ack(batch)
        found += batch
    return found


def texts(client: Client, topic: str) -> list[str]:
    return [message.text for message in everything(client, topic)]
