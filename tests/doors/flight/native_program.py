"""A program that uses the native client, to be killed or interrupted. Run by test_client_programs.

python -m tests.doors.flight.native_program JOB ADDRESS TOPIC NAME TOTAL

`produce` sends the numbers up to TOTAL, from where an earlier run has come to; `consume` writes the numbers that it
gets to standard output, and acknowledges them, until it has the last. The other jobs do one thing and wait.
"""

import sys
from collections.abc import Callable

import stafeta
from tests.waiting import PATIENCE


def main(job: str, address: str, topic: str, name: str, last: str) -> None:
    total = int(last)
    broker = stafeta.connect(address, timeout=PATIENCE)
    if job == "produce":
        with broker, broker.producer(topic, name=name, batch_rows=50, linger=0.001) as producer:
            print(producer.count, flush=True)
            for number in range(producer.count, total):
                producer.send(str(number))
                if number % 1000 == 999:
                    producer.flush()
                    print(producer.count, flush=True)
    elif job == "consume":
        with broker, broker.subscribe(topic, name=name, columns=["payload"]) as subscription:
            for batch in subscription:
                print(*(payload.decode() for payload in batch.payloads()), sep="\n", flush=True)
                batch.ack()
                if batch.payloads()[-1] == b"%d" % (total - 1):
                    break
    elif job == "leave":  # without closing anything
        broker.producer(topic).send("said in leaving")
        broker.subscribe(topic)
    else:
        producer, subscription = broker.producer(topic), broker.subscribe(topic)
        print("ready", flush=True)
        sys.stdin.readline()
        if job == "flush":
            producer.send("x")
        print("waiting", flush=True)
        jobs: dict[str, Callable[[], object]] = {
            "flush": producer.flush,
            "next": lambda: next(subscription),
            "stats": broker.stats,
            "publish": lambda: broker.publish(topic, ["y"]),
            "read": lambda: broker.read(topic),
        }
        jobs[job]()


if __name__ == "__main__":
    main(*sys.argv[1:])
