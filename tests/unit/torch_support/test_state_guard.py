"""The lock that exports of one process take turns with."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from modelexport.torch_support import TORCH_LOCK


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_lock_is_free_in_a_process_that_was_forked_while_another_thread_held_it() -> None:
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with TORCH_LOCK:
            held.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    child = os.fork()
    if child == 0:
        # Without the renewed lock this process would wait forever: the alarm ends it.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)
        with TORCH_LOCK:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 0
    with TORCH_LOCK:
        pass
