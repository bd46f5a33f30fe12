"""The futures of appends work wherever the standard library takes a future."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import (
    FIRST_COMPLETED,
    FIRST_EXCEPTION,
    CancelledError,
    Future,
    InvalidStateError,
    ThreadPoolExecutor,
    as_completed,
    wait,
)
from functools import partial
from types import FrameType

import pytest

from wal3_core.runtime import Cache, CancellableOutcome, Outcome, map_ahead, shared_runtime
from wal3_core.workers import COMMON

DONE_S_MAX = 60


def test_functions_over_several_futures_take_it() -> None:
    slow, quick, plain = Outcome[int](), Outcome[int](), Future[int]()
    threading.Timer(0.01, quick.set_result, [1]).start()

    done, not_done = wait([slow, quick, plain], DONE_S_MAX, return_when=FIRST_COMPLETED)
    slow.set_exception(KeyError("missing"))
    plain.set_result(3)

    assert (done, not_done) == ({quick}, {slow, plain})
    assert set(as_completed([slow, quick, plain], DONE_S_MAX)) == {slow, quick, plain}


def test_coroutine_awaits_it() -> None:
    async def first() -> int:
        outcome = Outcome[int]()
        threading.Timer(0.01, outcome.set_result, [1]).start()
        return await asyncio.wait_for(asyncio.wrap_future(outcome), DONE_S_MAX)

    assert asyncio.run(first()) == 1


def test_coroutine_that_is_cancelled_leaves_it_to_be_set() -> None:
    outcome = Outcome[int]()

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.wrap_future(outcome), 0.01)

    asyncio.run(give_up())
    outcome.set_result(1)

    assert (outcome.result(), outcome.exception(), outcome.done(), outcome.running()) == (1, None, True, False)
    assert not outcome.cancel()
    assert not outcome.cancelled()
    assert outcome.set_running_or_notify_cancel()


def test_it_is_set_once() -> None:
    outcome = Outcome[int]()
    outcome.set_result(1)

    with pytest.raises(InvalidStateError):
        outcome.set_exception(KeyError("missing"))

    assert outcome.result() == 1


def test_it_is_set_once_even_to_the_same_value() -> None:
    outcome = Outcome[None]()
    outcome.set_result(None)

    with pytest.raises(InvalidStateError):
        outcome.set_result(None)
    with pytest.raises(InvalidStateError):
        outcome.set_exception(None)


def test_functions_over_several_futures_take_those_that_are_set_already() -> None:
    result, failure, later = Outcome[int](), Outcome[int](), Outcome[int]()
    result.set_result(1)
    failure.set_exception(KeyError("missing"))

    assert wait([result, failure, later], 0).done == {result, failure}
    assert wait([result, later], DONE_S_MAX, return_when=FIRST_COMPLETED).done == {result}
    assert wait([failure, later], DONE_S_MAX, return_when=FIRST_EXCEPTION).done == {failure}
    later.set_result(2)
    assert set(as_completed([result, failure, later], DONE_S_MAX)) == {result, failure, later}
    assert wait([result, failure, later], DONE_S_MAX).not_done == set()


def test_all_are_waited_for_while_other_threads_set_them() -> None:
    """It is set, and its condition made, in any order; none of the two threads misses the other."""
    with ThreadPoolExecutor(4) as pool:
        for _ in range(200):
            outcomes = [Outcome[int]() for _ in range(8)]
            setting = [pool.submit(outcome.set_result, number) for number, outcome in enumerate(outcomes)]

            found = wait(outcomes, DONE_S_MAX)

            assert found.not_done == set()
            assert [outcome.result(0) for outcome in outcomes] == list(range(8))
            assert wait(setting, DONE_S_MAX).not_done == set()


def test_one_of_two_threads_sets_it() -> None:
    def attempt(outcome: Outcome[int], number: int) -> bool:
        try:
            outcome.set_result(number)
        except InvalidStateError:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        for _ in range(200):
            outcome = Outcome[int]()
            done = list(pool.map(attempt, [outcome] * 4, range(4), timeout=DONE_S_MAX))

            assert done.count(True) == 1
            assert done[outcome.result(0)]


def test_each_callback_is_called_once_whenever_it_is_added(caplog: pytest.LogCaptureFixture) -> None:
    outcome, called = Outcome[int](), list[str]()

    def fail(_: Future[int]) -> None:
        called.append("failing")
        raise KeyError("missing")

    outcome.add_done_callback(fail)
    outcome.add_done_callback(lambda _: called.append("before"))
    outcome.set_result(1)
    outcome.add_done_callback(lambda future: called.append(f"after {future.result()}"))

    assert called == ["failing", "before", "after 1"]
    assert "exception calling callback" in caplog.text


def test_wait_ends_with_its_timeout() -> None:
    with pytest.raises(TimeoutError):
        Outcome[int]().result(0.01)
    with pytest.raises(TimeoutError):
        Outcome[int]().exception(0)


@pytest.mark.parametrize("make", [CancellableOutcome, Future])
def test_it_is_cancelled_until_a_thread_has_begun_with_it(make: type[Future[int]]) -> None:
    cancelled, begun, done, called = make(), make(), make(), []
    cancelled.add_done_callback(called.append)

    assert (cancelled.cancel(), cancelled.cancelled(), cancelled.done()) == (True, True, True)
    assert called == [cancelled]
    assert not cancelled.set_running_or_notify_cancel()
    assert wait([cancelled], DONE_S_MAX).done == {cancelled}
    for ask in (cancelled.result, cancelled.exception):
        with pytest.raises(CancelledError):
            ask(0)

    assert not begun.running()
    assert begun.set_running_or_notify_cancel()
    assert (begun.running(), begun.cancel(), begun.cancelled()) == (True, False, False)
    begun.set_result(1)
    done.set_result(2)
    assert (begun.result(), done.result(), begun.running(), done.cancel()) == (1, 2, False, False)


def test_cancel_that_is_interrupted_counts() -> None:
    outcome = CancellableOutcome[int]()
    outcome.__dict__["_is_cancelled"] = True

    assert not outcome.set_running_or_notify_cancel()
    assert outcome.cancelled()


def test_those_whom_an_interrupted_thread_has_left_asleep_are_woken() -> None:
    outcome, awake = Outcome[None](), threading.Event()
    sleeper = threading.Thread(target=lambda: (outcome.result(DONE_S_MAX), awake.set()), daemon=True)
    sleeper.start()
    while not outcome._sleepers:
        pass
    # As far as a thread comes that is interrupted when it sets it.
    outcome.__dict__["_final"] = (None, None)

    outcome.set_or_rouse()

    assert awake.wait(DONE_S_MAX)


def interrupted(act: Callable[[], object], line: int) -> bool:
    """Interrupt what is done at a line of the module of outcomes; return whether it came so far."""
    source, lines = vars(sys.modules[Outcome.__module__])["__file__"], [0]

    def interrupt(frame: FrameType, event: str, _: object) -> object:
        if frame.f_code.co_filename != source:
            return None
        lines[0] += event == "line"
        if lines[0] == line:
            raise KeyboardInterrupt
        return interrupt

    before = sys.gettrace()
    sys.settrace(interrupt)  # type: ignore[arg-type]  # it returns itself, which no type says
    with contextlib.suppress(KeyboardInterrupt):
        act()
    sys.settrace(before)
    return lines[0] >= line


def test_wait_that_is_interrupted_leaves_a_finished_future_that_says_so() -> None:
    """Regression: the standard library's functions over several futures never returned it again."""
    for line in range(1, 1000):
        outcome = Outcome[int]()
        outcome.set_result(1)

        came_so_far = interrupted(partial(wait, [outcome], DONE_S_MAX), line)

        assert wait([outcome], 0).done == {outcome}, f"interrupted at line {line}"
        if not came_so_far:
            return


def test_cache_that_is_interrupted_has_as_much_room_as_before() -> None:
    """Regression: each interrupt could take away the room of one value, for ever."""
    for line in range(1, 1000):
        cache = Cache[int](shared_runtime(), 2, lambda _: 1)
        cache.keep("first", 1)

        came_so_far = interrupted(partial(cache.keep, "second", 2), line)

        cache.keep("third", 3)
        cache.keep("fourth", 4)
        assert (cache.get("third"), cache.get("fourth")) == (3, 4), f"interrupted at line {line}"
        if not came_so_far:
            return


@pytest.mark.slow
def test_results_are_let_go_as_they_are_taken() -> None:
    """Regression: the last ones were held until all were taken."""

    class Result:
        pass

    refs: list[weakref.ref[Result]] = []
    alive: list[int] = []
    for result in map_ahead(shared_runtime(), lambda _: Result(), range(4), count=4):
        refs.append(weakref.ref(result))
        del result
        gc.collect()
        alive.append(sum(ref() is not None for ref in refs))
    assert max(alive) <= 1


def test_reader_that_joins_an_interrupted_load_loads_for_itself() -> None:
    """Regression: it waited for ever."""
    cache = Cache[int](shared_runtime(), 1000, lambda _: 1)
    joined: list[Callable[[], int]] = []

    class Interrupting:
        def spawn(self, _: object, **_share: object) -> None:
            joined.append(cache.begin("key", lambda: 2, None))
            raise KeyboardInterrupt

        def __getattr__(self, name: str) -> object:
            return getattr(shared_runtime(), name)

    cache._runtime = Interrupting()  # type: ignore[assignment]  # a runtime by its __getattr__
    with pytest.raises(KeyboardInterrupt):
        cache.begin("key", lambda: 1, COMMON)

    assert joined[0]() == 2
