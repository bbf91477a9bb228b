"""However an export ends, the model, torch, the process and the folder are as they were."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from modelexport.errors import InputError, StorageError, StrategyIncompatibleError
from modelexport.export import STEPS, export_model
from modelexport.preserve import preserved_state
from modelexport.result import ProgressEvent
from modelexport.strategies.registry import default_registry

Snapshot = dict[str, Any]


# --- what must be as before ------------------------------------------------------------------------------------


def snapshot(model: nn.Module) -> Snapshot:
    """Everything an export could disturb: the model, torch's modes and patches, random states, the process."""
    return {**model_state(model), **torch_state(), **process_state()}


def model_state(model: nn.Module) -> Snapshot:
    modules = dict(model.named_modules(remove_duplicate=False))
    state: Snapshot = {"modules": {name: id(module) for name, module in modules.items()}}
    for name, module in modules.items():
        own = vars(module)
        state[f"{name}: training"] = module.training
        state[f"{name}: attributes"] = sorted(own)
        state[f"{name}: forward"] = own.get("forward")
        for table in (key for key in own if "_hooks" in key):
            state[f"{name}: {table}"] = list(own[table].items()) if isinstance(own[table], dict) else own[table]
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        state[f"{name}: tensor"] = (id(tensor), tensor.requires_grad, tensor.grad is None)
    for name, tensor in model.state_dict().items():
        state[f"{name}: content"] = (tuple(tensor.shape), tensor.dtype, tensor.numpy().tobytes())
    return state


def torch_state() -> Snapshot:
    hooks = vars(nn.modules.module)
    kinds = ("cpu", "cuda")
    return {
        "grad mode": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "default dtype": torch.get_default_dtype(),
        "autocast": [(torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in kinds],
        "autocast cache": torch.is_autocast_cache_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "deterministic, warnings only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "threads": torch.get_num_threads(),
        "modes": (_get_current_dispatch_mode_stack(), _get_current_function_mode_stack()),
        "tracing": (torch.compiler.is_exporting(), torch.compiler.is_compiling(), torch.jit.is_tracing()),
        "patches": (torch.onnx.ONNXProgram.optimize, torch.onnx.export, torch.export.export, nn.Module.__call__),
        "global hooks": {
            name: list(table.items()) if isinstance(table, dict) else table
            for name, table in hooks.items()
            if name.startswith("_global_") and not callable(table)
        },
    }


def process_state() -> Snapshot:
    name, keys, *rest = np.random.get_state()
    loggers = {n: log for n, log in logging.root.manager.loggerDict.items() if isinstance(log, logging.Logger)}
    return {
        "random of Python": random.getstate(),
        "random of NumPy": (name, keys.tobytes(), *rest),
        "random of torch": torch.get_rng_state().numpy().tobytes(),
        "warnings": (list(warnings.filters), warnings.showwarning),
        "folder": Path.cwd(),
        "path": list(sys.path),
        "environment": dict(os.environ),
        "streams": (sys.stdout, sys.stderr, sys.excepthook),
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        # Not their handlers: torch takes one of its own away when it first traces.
        **{f"logger {n}": (log.level, log.disabled, log.propagate) for n, log in loggers.items()},
    }


def changes(before: Snapshot, after: Snapshot) -> list[str]:
    """What is not as before. A logger or anything else with a key of its own may be new, but nothing may change."""
    return [key for key, value in before.items() if key not in after or after[key] != value]


def files(folder: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(folder)): None if p.is_dir() else p.read_bytes() for p in sorted(folder.rglob("*"))}


# --- a model that is easy to disturb ---------------------------------------------------------------------------


@torch.library.custom_op("modelexport_tests::untranslated", mutates_args=())
def untranslated(x: torch.Tensor) -> torch.Tensor:
    """An operator that has no translation to ONNX."""
    return x.clone()


@untranslated.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class Meddler(nn.Module):
    """Changes in its forward what an export promises to put back, as user code may."""

    def __init__(self, victim: nn.Linear) -> None:
        super().__init__()
        self.victim = (victim,)  # in a tuple, so that it is no child

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        (victim,) = self.victim
        random.random()
        np.random.rand()
        torch.manual_seed(len(str(x.shape)))
        torch.set_default_dtype(torch.float64)
        torch.use_deterministic_algorithms(True)
        torch.set_autocast_enabled("cpu", True)
        torch.set_grad_enabled(False)
        warnings.simplefilter("ignore")
        self.train(not self.training)
        victim.weight.requires_grad_(not victim.weight.requires_grad)
        victim.register_forward_hook(do_nothing)
        victim.forward = torch.neg  # type: ignore[method-assign,assignment]
        return x * 2


class Ending(nn.Module):
    """Ends the forward pass in the way it is told to."""

    def __init__(self, act: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.act = act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(x)


def succeed(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def fail(x: torch.Tensor) -> torch.Tensor:
    raise ValueError(f"cannot take {tuple(x.shape)}")


def interrupt(*_: object) -> torch.Tensor:
    raise KeyboardInterrupt


def wait_for_a_signal(x: torch.Tensor) -> torch.Tensor:
    sys.stdout.write("tracing\n")
    sys.stdout.flush()
    time.sleep(60)
    return x


def do_nothing(*_: object) -> None:
    """A hook of the user's."""


def negated(x: torch.Tensor) -> torch.Tensor:
    return -x


class Net(nn.Module):
    def __init__(self, act: Callable[[torch.Tensor], torch.Tensor], width: int) -> None:
        super().__init__()
        self.stem = nn.Linear(4, width)
        self.frozen = nn.BatchNorm1d(width)
        self.norm = nn.BatchNorm1d(width)
        self.drop = nn.Dropout(0.5)
        self.own = nn.Identity()
        self.meddler = Meddler(self.stem)
        self.tail = nn.ModuleList([Ending(act)])
        self.alias = self.tail[0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.own(self.drop(self.norm(self.frozen(self.stem(x)))))
        return self.alias(self.meddler(x))


def net(act: Callable[[torch.Tensor], torch.Tensor] = succeed, *, width: int = 4, meddling: bool = True) -> nn.Module:
    """In train mode with a frozen BatchNorm in eval mode, a frozen parameter, hooks and a forward of its own."""
    torch.manual_seed(3)
    model = Net(act, width).train()
    if not meddling:
        model.meddler = nn.Identity()
    model.frozen.eval()
    model.frozen.weight.requires_grad_(False)
    model.own.forward = negated
    model.stem.register_forward_pre_hook(do_nothing, with_kwargs=True)
    model.stem.register_forward_hook(do_nothing)
    model.stem.register_forward_hook(do_nothing, with_kwargs=True, prepend=True)
    model.norm.register_forward_hook(do_nothing, always_call=True)
    model.register_state_dict_post_hook(do_nothing)
    model.register_load_state_dict_post_hook(do_nothing)
    return model


def example() -> torch.Tensor:
    return torch.linspace(-1, 1, 8).reshape(2, 4)


# --- places ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an export whose weights are in a file of their own."""
    folder = tmp_path_factory.mktemp("reference")
    export_model(net(meddling=False), example(), folder / "model.onnx", external_data=True)
    assert len(files(folder)) == 3
    return folder


@pytest.fixture
def folder(tmp_path: Path, reference: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that already holds an export, beside an empty one that is the process's own."""
    shutil.copytree(reference, tmp_path / "out")
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    return tmp_path / "out"


@pytest.fixture(autouse=True)
def _modes_as_imported() -> Iterator[None]:
    """What one test finds left behind is not found again by the next."""
    yield
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(False)
    torch.set_autocast_enabled("cpu", False)
    torch.set_autocast_cache_enabled(True)


def mount(place: Path, *options: str) -> None:
    done = subprocess.run(["mount", *options, str(place)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"cannot mount: {done.stderr.strip()}")


@pytest.fixture
def small_disk(folder: Path) -> Iterator[Path]:
    """A disk of its own with the older export and room for little more."""
    old = {name: content for name, content in files(folder).items() if content is not None}
    mount(folder, "-t", "tmpfs", "-o", "size=192k", "tmpfs")
    try:
        for name, content in old.items():
            (folder / name).write_bytes(content)
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


# --- outcomes --------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How an export ends: the error it raises, and whether there is a new artifact then."""

    act: Callable[[torch.Tensor], torch.Tensor] = succeed
    error: type[BaseException] | None = None
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


def interrupt_at(step: str, finished: bool) -> Callable[[ProgressEvent], object]:
    return lambda event: interrupt() if (event.step, event.finished) == (step, finished) else None


def check_outcome(outcome: Outcome, folder: Path, *, width: int = 4) -> None:
    """Export as told; afterwards everything is as before, but for a new artifact where the export succeeds."""
    model, x = net(outcome.act, width=width), example()
    content, artifact = x.clone(), files(folder)
    before = snapshot(model)
    if outcome.error is None:
        export_model(model, x, folder / "model.onnx", **outcome.options)
    else:
        with pytest.raises(outcome.error) as caught:
            export_model(model, x, folder / "model.onnx", **outcome.options)
        assert caught.type is outcome.error
    assert changes(before, snapshot(model)) == []
    assert torch.equal(x, content)
    assert not files(Path.cwd())
    if outcome.error is not None:
        assert files(folder) == artifact


OUTCOMES = {
    "succeeds": Outcome(),
    "succeeds in training mode": Outcome(options={"training": True}),
    "fails in forward": Outcome(fail, InputError),
    "fails in conversion": Outcome(untranslated, StrategyIncompatibleError),
    "is interrupted in forward": Outcome(interrupt, KeyboardInterrupt),
}


def strategies() -> list[str]:
    """The strategies by name."""
    return [strategy.name for strategy in default_registry()]


@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("strategy", strategies())
def test_everything_is_as_before_when_an_export(strategy: str, outcome: str, folder: Path, reference: Path) -> None:
    end = OUTCOMES[outcome]
    if strategy == "usage_based" and end.options.get("training"):
        # What a model in training mode computes changes from run to run: such evidence is refused.
        end = dataclasses.replace(end, error=StrategyIncompatibleError)
    check_outcome(dataclasses.replace(end, options={**end.options, "strategy": strategy}), folder)
    if end.error is None:
        assert set(files(folder)) == {"model.onnx", "model_hierarchy.json"}  # and no data file of the old graph
    # torch keeps its tracing state in globals: the next export shows whether that too is as before.
    export_model(net(meddling=False), example(), folder / "model.onnx", external_data=True)
    assert files(folder) == files(reference)


@pytest.mark.parametrize("finished", [False, True], ids=["begins", "ends"])
@pytest.mark.parametrize("step", STEPS)
def test_everything_is_as_before_when_an_observer_interrupts_as(step: str, finished: bool, folder: Path) -> None:
    outcome = Outcome(error=KeyboardInterrupt, options={"progress": interrupt_at(step, finished)})
    if (step, finished) != (STEPS[-1], True):
        check_outcome(outcome, folder)
        return
    # The artifact is committed by then: the new one is there, whole.
    model = net()
    before = snapshot(model)
    with pytest.raises(KeyboardInterrupt):
        export_model(model, example(), folder / "model.onnx", **outcome.options)
    assert changes(before, snapshot(model)) == []
    assert set(files(folder)) == {"model.onnx", "model_hierarchy.json"}
    onnx.checker.check_model(onnx.load(folder / "model.onnx"))


@pytest.mark.parametrize("external_data", [False, True], ids=["inline", "external"])
def test_everything_is_as_before_when_the_disk_is_full(external_data: bool, small_disk: Path) -> None:
    outcome = Outcome(error=StorageError, options={"external_data": external_data})
    check_outcome(outcome, small_disk, width=50_000)


def test_everything_is_as_before_when_the_place_is_read_only(small_disk: Path) -> None:
    mount(small_disk, "-o", "remount,ro")
    check_outcome(Outcome(error=InputError), small_disk)


def test_everything_is_as_before_when_the_place_becomes_read_only_before_writing(small_disk: Path) -> None:
    def lock(event: ProgressEvent) -> None:
        if (event.step, event.finished) == ("write", False):
            mount(small_disk, "-o", "remount,ro")

    check_outcome(Outcome(error=StorageError, options={"progress": lock}), small_disk)


def test_older_artifact_is_intact_when_what_was_traced_cannot_be_written(folder: Path, tmp_path: Path) -> None:
    dumps = tmp_path / "dumps"
    dumps.mkdir()
    artifact = files(folder)

    def take_away(event: ProgressEvent) -> None:
        if (event.step, event.finished) == ("write", False):
            dumps.rmdir()

    with pytest.raises(StorageError):
        export_model(net(), example(), folder / "model.onnx", fx_graph_path=dumps / "graph.txt", progress=take_away)
    assert files(folder) == artifact


def test_older_dump_is_intact_when_the_artifact_cannot_be_written(small_disk: Path, tmp_path: Path) -> None:
    dump = tmp_path / "graph.txt"
    dump.write_text("an older graph")
    with pytest.raises(StorageError):
        export_model(net(width=50_000), example(), small_disk / "model.onnx", fx_graph_path=dump)
    assert dump.read_text() == "an older graph"


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT for one process")
def test_everything_is_as_before_when_the_first_export_of_a_process_gets_a_signal(folder: Path) -> None:
    artifact = files(folder)
    command = [sys.executable, __file__, str(folder / "model.onnx")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "tracing\n"
        child.send_signal(signal.SIGINT)
        said, complaints = child.communicate(timeout=120)
    assert child.returncode == 0, complaints
    assert json.loads(said) == []
    assert files(folder) == artifact
    assert not files(Path.cwd())


def report_signal(path: Path) -> None:
    """What the child does: export until the signal comes, and say what is not as before."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a process started in the background ignores it
    warnings.simplefilter("ignore")
    model = net(wait_for_a_signal)
    before = snapshot(model)
    try:
        export_model(model, example(), path)
    except KeyboardInterrupt:
        sys.stdout.write(json.dumps(changes(before, snapshot(model))))


def test_preserved_state_puts_back_whatever_the_block_changed_before_it_failed() -> None:
    """Directly, because some of it torch puts back too when it traces."""
    model = net()
    before = snapshot(model)

    def meddle() -> None:
        with preserved_state(model):
            model.meddler(example())
            assert {"grad mode", "default dtype", "autocast", "stem: forward"} <= set(changes(before, snapshot(model)))
            interrupt()

    with pytest.raises(KeyboardInterrupt):
        meddle()
    assert changes(before, snapshot(model)) == []


def test_modes_that_the_user_has_set_stay_set(folder: Path) -> None:
    torch.use_deterministic_algorithms(True)
    torch.set_default_dtype(torch.float64)
    with torch.no_grad(), torch.autocast("cpu", torch.float16):
        check_outcome(OUTCOMES["succeeds"], folder)
        assert torch.are_deterministic_algorithms_enabled()


# --- what forward itself changes -------------------------------------------------------------------------------


class Undecided(nn.Module):
    """Runs in PyTorch but not in torch.export, and changes its own state on the way."""

    def __init__(self, change: Callable[[Undecided, torch.Tensor], None]) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 2, max_norm=0.1)
        self.register_buffer("steps", torch.zeros(1))
        self.change = change

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.change(self, x)
        return x + 1 if x.sum() > 0 else x - 1


def add_in_place(model: Undecided, _: torch.Tensor) -> None:
    model.steps.add_(1)


def assign(model: Undecided, _: torch.Tensor) -> None:
    model.steps = model.steps + 1


def normalize_weights(model: Undecided, x: torch.Tensor) -> None:
    model.table((x > 0).long())


@pytest.mark.parametrize("change", [add_in_place, assign, normalize_weights])
def test_state_dict_is_as_before_when_a_model_that_changes_it_cannot_be_exported(
    change: Callable[[Undecided, torch.Tensor], None], folder: Path
) -> None:
    model = Undecided(change)
    before, artifact = snapshot(model), files(folder)
    with pytest.raises(StrategyIncompatibleError):
        export_model(model, example(), folder / "model.onnx", strategy="fx")
    assert changes(before, snapshot(model)) == []
    assert files(folder) == artifact


def register_hooks(x: torch.Tensor, module: nn.Module) -> torch.Tensor:
    module.register_forward_pre_hook(do_nothing, with_kwargs=True)
    module.register_forward_hook(do_nothing, with_kwargs=True, always_call=True)
    return x + 1


def test_hooks_with_keyword_arguments_that_forward_registers_are_gone(folder: Path) -> None:
    child = nn.Identity()
    model = nn.Sequential(child, Ending(lambda x: register_hooks(x, child)))
    before = snapshot(model)
    export_model(model, example(), folder / "model.onnx")
    assert changes(before, snapshot(model)) == []


def forget_determinism(x: torch.Tensor) -> torch.Tensor:
    torch.use_deterministic_algorithms(False)
    return x + 1


class HookedOnce(nn.Module):
    """Adds a hook at its first run and notes that it did, as current transformers models do."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.cached: object = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not getattr(self, "hooked", False):
            self.hooked = True
            self.lin.register_forward_hook(lambda *_: self.seen.append(1))
        self.seen: list[int] = []
        self.cached = self.lin(x)
        return self.cached


def test_note_of_hooks_that_forward_registers_goes_with_them(folder: Path) -> None:
    model = HookedOnce()
    export_model(model, torch.randn(2, 3), folder / "model.onnx", strategy="fx")
    assert not hasattr(model, "hooked")
    assert model.cached is None
    model(torch.randn(2, 3))
    assert model.seen == [1]


def test_determinism_that_only_warns_is_as_before(folder: Path) -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    model = Ending(forget_determinism)
    before = snapshot(model)
    export_model(model, example(), folder / "model.onnx")
    assert changes(before, snapshot(model)) == []


# --- modes and inputs ------------------------------------------------------------------------------------------


def operators(path: Path) -> set[str]:
    return {node.op_type for node in onnx.load(path).graph.node}


@pytest.mark.parametrize("strategy", strategies())
def test_graph_of_a_model_in_train_mode_is_that_of_the_model_in_eval_mode(strategy: str, tmp_path: Path) -> None:
    contents = []
    for mode in (True, False):
        model = net(meddling=False).train(mode)
        export_model(model, example(), tmp_path / "model.onnx", strategy=strategy)
        contents.append(files(tmp_path))
    assert contents[0] == contents[1]
    assert "Dropout" not in operators(tmp_path / "model.onnx")


@pytest.mark.parametrize("strategy", [name for name in strategies() if name != "usage_based"])
def test_training_keeps_the_mode_of_each_module(strategy: str, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Dropout(0.5)).train()
    model[2].eval()
    result = export_model(model, example(), tmp_path / "model.onnx", training=True, strategy=strategy)
    assert [node.module for node in result.document.nodes if node.op == "Dropout"] == ["1"]
    assert [module.training for module in model] == [True, True, False]


def test_values_that_change_with_each_run_are_refused_as_evidence(tmp_path: Path) -> None:
    with pytest.raises(StrategyIncompatibleError, match="training mode"):
        export_model(nn.Dropout(0.5).train(), example(), tmp_path / "m.onnx", training=True, strategy="usage_based")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("strategy", [name for name in strategies() if name != "usage_based"])
def test_training_does_not_warn_of_what_was_asked_for(strategy: str, tmp_path: Path) -> None:
    export_model(nn.Dropout(0.5).train(), example(), tmp_path / "model.onnx", training=True, strategy=strategy)


class Greedy(nn.Module):
    """Changes everything it is given."""

    def __init__(self, act: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.act = act

    def forward(self, x: torch.Tensor, rows: list[torch.Tensor], *, options: dict[str, torch.Tensor]) -> torch.Tensor:
        x.add_(1)
        rows.append(rows[0] * options.pop("scale"))
        options["extra"] = x
        return self.act(rows[-1] + x)


@pytest.mark.parametrize("outcome", ["succeeds", "fails in forward", "fails in conversion"])
@pytest.mark.parametrize("strategy", strategies())
def test_inputs_are_as_before_even_where_forward_changes_them(strategy: str, outcome: str, tmp_path: Path) -> None:
    x, row, scale = example(), torch.ones(2, 4), torch.full((4,), 3.0)
    rows, options = [row], {"scale": scale}
    named: dict[str, Any] = {"options": options}
    inputs = [x, rows, named]
    contents = [tensor.clone() for tensor in (x, row, scale)]
    model, error = Greedy(OUTCOMES[outcome].act), OUTCOMES[outcome].error
    if error is None:
        export_model(model, inputs, tmp_path / "model.onnx", strategy=strategy)
    else:
        with pytest.raises(error):
            export_model(model, inputs, tmp_path / "model.onnx", strategy=strategy)
    for tensor, content in zip((x, row, scale), contents, strict=True):
        assert torch.equal(tensor, content)
        assert not tensor.requires_grad
    assert [id(value) for value in inputs] == [id(x), id(rows), id(named)]
    assert [id(value) for value in rows] == [id(row)]
    assert named == {"options": options}
    assert {name: id(value) for name, value in options.items()} == {"scale": id(scale)}


if __name__ == "__main__":
    report_signal(Path(sys.argv[1]))
