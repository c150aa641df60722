from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from stafeta.clients.zeromq.client_state import ClientState, open_client_state
from stafeta.clients.zeromq.read_position import Reader
from stafeta.clients.zeromq.replies import Message

IDS = st.lists(st.integers(1, 60), unique=True, min_size=1, max_size=20).map(sorted)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("get"), st.integers(1, 8)),
        st.tuples(st.just("ack"), st.lists(st.integers(0, 19), max_size=4)),
        st.tuples(st.just("up to"), st.integers(0, 19)),
        st.tuples(st.just("start again"), st.none()),
    ),
    max_size=30,
)


def message(id_: int) -> Message:
    return Message("t", id_, b"", "string", datetime.now(UTC), "t")


def notebook_in_memory() -> ClientState:
    try:
        next(open_client_state(None, 0))
    except StopIteration as end:
        state: ClientState = end.value
    return state


@given(IDS, STEPS)
def test_what_is_acknowledged_never_comes_again_and_the_rest_always_does(
    ids: list[int], steps: list[tuple[str, object]]
) -> None:
    state = notebook_in_memory()
    reader = Reader(state, "t")
    done: set[int] = set()
    for step in steps:
        before = reader.position
        match step:
            case "get", int(limit):
                page = [id_ for id_ in ids if id_ > reader.position][:limit]
                found = [one.id for one in reader.given([message(id_) for id_ in page], "mark")]
                assert found == [id_ for id_ in page if id_ not in done]
            case "ack", list(indexes):
                some = [ids[index % len(ids)] for index in indexes]
                reader.acknowledge(some)
                done.update(some)
            case "up to", int(index):
                last = ids[index % len(ids)]
                reader.acknowledge_up_to(last)
                done.update(id_ for id_ in ids if id_ <= last)
            case _:
                reader = Reader(state, "t")
        assert reader.position >= before
        assert all(id_ in done for id_ in ids if id_ <= reader.position)
    state.close()
