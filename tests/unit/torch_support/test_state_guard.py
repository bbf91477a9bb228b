"""The lock that exports of one process take turns with."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from modelexport import export_model
from modelexport.torch_support import TORCH_LOCK

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
]


def exit_code_of_fork(work: Callable[[], object]) -> int:
    child = os.fork()
    if child == 0:
        # A lock that nobody releases would let this process wait forever: the alarm ends it.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)
        try:
            work()
        except BaseException:  # noqa: BLE001  whatever it is, the forked process ends here
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def take_lock() -> None:
    with TORCH_LOCK:
        pass


def test_lock_is_free_in_a_forked_process_whichever_thread_held_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modelexport.torch_support.state_guard._FORK_PATIENCE_S", 0.1)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with TORCH_LOCK:
            held.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    assert exit_code_of_fork(take_lock) == 0
    done.set()
    thread.join()
    with TORCH_LOCK:
        assert exit_code_of_fork(take_lock) == 0
    take_lock()


class Waiting(torch.nn.Module):
    """Waits while it is traced."""

    def __init__(self) -> None:
        super().__init__()
        self.traced, self.forking = threading.Event(), threading.Event()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.jit.is_tracing():
            self.traced.set()
            self.forking.wait(60)
        return x + 1


def test_process_forked_while_another_thread_traces_can_export(tmp_path: Path) -> None:
    model, x = Waiting(), torch.ones(2)

    def export(name: str) -> None:
        export_model(model, (x,), tmp_path / name, strategy="htp")

    thread = threading.Thread(target=export, args=("thread.onnx",))
    thread.start()
    assert model.traced.wait(60)
    # The fork waits for the trace, which ends after it.
    threading.Timer(0.1, model.forking.set).start()
    assert exit_code_of_fork(lambda: export("child.onnx")) == 0
    thread.join()
    assert (tmp_path / "child.onnx").read_bytes() == (tmp_path / "thread.onnx").read_bytes()
