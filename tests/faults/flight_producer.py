"""A producer at the Flight door, to be killed. Run as a program by test_flight_producer_killed.

python -m tests.faults.flight_producer HOST PORT TOPIC PRODUCER TOTAL

puts the numbers from 1 to TOTAL, from where the broker says an earlier run has come to, several batches ahead of the
answers. For each answer it writes a line: the first number of the batch, its rows and its offset.
"""

import sys
from collections import deque

from tests.doors.flight.peers import Peer, rows_of

AHEAD = 4
ROWS = 37


def main(host: str, port: str, topic: str, producer: str, last: str) -> None:
    total = int(last)
    with Peer((host, int(port))) as peer:
        number = peer.act("sequence", producer=producer, topic=topic)["next"]
        on_their_way: deque[int] = deque()
        with peer.putting({"topic": topic, "producer": producer}, rows_of([]).schema) as stream:
            while number <= total or on_their_way:
                if number <= total and len(on_their_way) < AHEAD:
                    end = min(number + ROWS, total + 1)
                    stream.send(rows_of(map(str, range(number, end))), {"sequence": number})
                    on_their_way.append(number)
                    number = end
                else:
                    answer = stream.answer()
                    sys.stdout.write(f"{on_their_way.popleft()} {answer['rows']} {answer['offset']}\n")
                    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
