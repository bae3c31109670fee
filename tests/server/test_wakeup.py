"""`Wakeup` wakes those who wait: no call is missed, from whatever thread it comes."""

from __future__ import annotations

import asyncio
import threading

from tidemill.server.service import Wakeup


def test_a_ring_from_another_thread_wakes_all_who_wait():
    bell = Wakeup()

    async def wait() -> list[int]:
        waiting = [asyncio.create_task(bell.wait(0, 30)) for _ in range(3)]
        await asyncio.sleep(0)
        threading.Thread(target=bell.ring).start()
        return await asyncio.gather(*waiting)

    assert asyncio.run(wait()) == [1, 1, 1]


def test_who_remembers_how_often_it_rang_misses_nothing():
    bell = Wakeup()
    bell.ring()
    assert asyncio.run(bell.wait(0, 30)) == 1


def test_without_a_ring_the_wait_ends():
    assert asyncio.run(Wakeup().wait(0, 0.01)) == 0


def test_a_loop_that_is_gone_does_not_keep_it_from_ringing():
    bell = Wakeup()
    loop = asyncio.new_event_loop()
    task = loop.create_task(bell.wait(0, 30))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    bell.ring()
    assert bell.rung == 1
    assert not task.done()
    task._log_destroy_pending = False
