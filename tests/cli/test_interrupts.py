"""Ctrl-C: raised at a prompt, and otherwise left to whoever can end what goes on."""

import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from stafeta.cli import exits
from stafeta.cli.interrupts import Interrupts
from tests.waiting import PATIENCE

_HANGS = """
import signal, time
from stafeta.cli.interrupts import Interrupts

with Interrupts() as interrupts, interrupts.cancelling(lambda: None):
    signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)  # a key that bounces
    print("goes on", flush=True)
    time.sleep(1.1)
    signal.raise_signal(signal.SIGINT)
    print("not reached")
"""


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def answer_after(*actions: Callable[[], None]) -> str:
    for action in actions:
        action()
    return "answer"


def test_at_a_prompt_it_is_raised_and_the_next_answer_is_taken() -> None:
    with Interrupts() as interrupts:
        with pytest.raises(KeyboardInterrupt):
            interrupts.prompted(lambda: answer_after(interrupt))
        assert interrupts.prompted(answer_after) == "answer"


def test_what_goes_on_is_cancelled_by_another_thread_and_not_disturbed_itself() -> None:
    by: list[threading.Thread] = []
    twice, steps = threading.Event(), []

    def cancel() -> None:
        by.append(threading.current_thread())
        if len(by) == 2:
            twice.set()
        raise OSError("the server is busy")  # which is no reason to give up

    def go_on() -> None:
        interrupt()
        steps.append("goes on")
        assert twice.wait(PATIENCE)
        steps.append("ends")

    with Interrupts() as interrupts:
        with pytest.raises(KeyboardInterrupt), interrupts.cancelling(cancel):
            go_on()
        assert steps == ["goes on", "ends"]
        assert threading.current_thread() not in by
        # It counts for that one alone.
        interrupts.prompted(answer_after)
        with interrupts.cancelling(cancel):
            by.clear()
        assert not by


def test_an_error_is_told_unless_it_comes_of_the_interrupt() -> None:
    def be_cancelled() -> None:
        interrupt()
        raise ValueError("cancelled")

    with Interrupts() as interrupts:
        with pytest.raises(ValueError, match="own"), interrupts.cancelling(lambda: None):
            raise ValueError("its own")
        with pytest.raises(KeyboardInterrupt), interrupts.cancelling(lambda: None):
            be_cancelled()


def test_afterwards_ctrl_c_is_as_before() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupts():
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) == before


def test_the_second_one_leaves_what_does_not_end() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _HANGS], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (exits.INTERRUPTED, "goes on\n", "")
