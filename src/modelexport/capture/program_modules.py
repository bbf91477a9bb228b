"""The modules of an exported program as `nn.Module`s: what its record tells of them, which is all but their code."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import torch

from modelexport.capture.module_stack import read_module_stack
from modelexport.capture.module_tree import qualified_name
from modelexport.errors import StrategyIncompatibleError
from modelexport.hierarchy import MAX_DEPTH, ROOT_PATH, ancestor_paths

# The class of a module that the program holds, but never calls: nothing tells which it was.
_UNKNOWN_CLASS = qualified_name(torch.nn.Module)


class RecordedModule(torch.nn.Module):
    """A module inside of an exported program: its place, class and weights."""

    def forward(self) -> NoReturn:
        """There is none: a program keeps what was run, not the code of its modules."""
        raise NotImplementedError("a module of an exported program cannot be run on its own: run the whole program")


class ExportedProgramModule(torch.nn.Module):
    """An exported program as a model that can be called, with the modules it was made of."""

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        super().__init__()
        # A child may have any name but one that is taken, so what is kept here has names that no one chooses.
        self._modelexport_program = program
        self._modelexport_runners: list[torch.nn.Module] = []

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the whole program."""
        if not self._modelexport_runners:
            # In a list, for it is none of the modules that the program was made of.
            self._modelexport_runners.append(self._modelexport_program.module())
        return self._modelexport_runners[0](*args, **kwargs)


def program_of(model: ExportedProgramModule) -> torch.export.ExportedProgram:
    """The program that a model stands for."""
    return model._modelexport_program


def refuse_program(strategy: str, model: torch.nn.Module) -> None:
    """For strategies that need the Python of a model.

    Raises:
        StrategyIncompatibleError: It is an exported program.
    """
    if isinstance(model, ExportedProgramModule):
        raise StrategyIncompatibleError(
            strategy,
            "an exported program has no Python left to trace, and its modules cannot be run one by one.",
            "Use strategy 'fx', which reads the record that the program keeps, or export the model it was made of.",
        )


def program_graphs(module: torch.fx.GraphModule) -> Iterator[torch.fx.GraphModule]:
    """The graph of a program and those of its blocks and bodies."""
    return (graph for graph in module.modules() if isinstance(graph, torch.fx.GraphModule))


def model_of_program(program: torch.export.ExportedProgram) -> ExportedProgramModule:
    """The program as a model, its modules in the places that the record gives them.

    Raises:
        ValueError: The record makes no sense.
    """
    classes = _recorded_classes(program)
    root: ExportedProgramModule = _made(classes[ROOT_PATH], ExportedProgramModule, _forward(program))(program)
    modules: dict[str, torch.nn.Module] = {ROOT_PATH: root}
    for path, kind in classes.items():
        if path != ROOT_PATH:
            parent, _, name = path.rpartition(".")
            module = _made(kind, RecordedModule)()
            modules[parent].add_module(name, module)
            modules[path] = module
    _add_weights(program, modules)
    for module in modules.values():
        module.training = False
    return root


def _recorded_classes(program: torch.export.ExportedProgram) -> dict[str, str]:
    """Every module's class by its path, parents first, in the order of the model's own list of modules."""
    seen: dict[str, str] = {}
    for graph in program_graphs(program.graph_module):
        for node in graph.graph.nodes:
            stack = read_module_stack(node)
            # Entries that stand for no module lead nowhere: they come without the root.
            if stack and stack[0].path == ROOT_PATH:
                seen.update({entry.path: entry.class_name for entry in stack})
    listed = [entry.fqn for entry in program.module_call_graph]
    calls_of = {name for name in listed if name.partition("@")[0] in listed and "@" in name}
    weights = [name.rpartition(".")[0] for name in (*program.state_dict, *program.constants)]
    classes = {ROOT_PATH: seen.get(ROOT_PATH, _UNKNOWN_CLASS)}
    for path in (*(name for name in listed if name not in calls_of), *seen, *weights):
        if path.count(".") > MAX_DEPTH:
            raise ValueError(f"modules lie {path.count('.')} deep in each other")
        for part in (*reversed(list(ancestor_paths(path))), path):
            classes.setdefault(part, seen.get(part, _UNKNOWN_CLASS))
    return classes


def _made(qualified: str, base: type[Any], forward: Any = None) -> type[Any]:
    """A class that is called as the recorded one, and has nothing else of it."""
    module, _, name = qualified.rpartition(".")
    own = {"__module__": module, "__qualname__": name, "__doc__": base.__doc__}
    return type(name, (base,), own if forward is None else {**own, "forward": forward})


def _forward(program: torch.export.ExportedProgram) -> Any:
    """The root's forward, with the names of the arguments that the program keeps."""

    def forward(self: ExportedProgramModule, *args: Any, **kwargs: Any) -> Any:
        return ExportedProgramModule.forward(self, *args, **kwargs)

    call = program.module_call_graph[0].signature if program.module_call_graph else None
    names = call.forward_arg_names if call is not None else None
    if names:
        model = next(iter(inspect.signature(forward).parameters.values()))
        arguments = [inspect.Parameter(name, model.kind) for name in names]
        forward.__signature__ = inspect.Signature([model, *arguments])  # type: ignore[attr-defined]
    return forward


def _add_weights(program: torch.export.ExportedProgram, modules: Mapping[str, torch.nn.Module]) -> None:
    """Parameters and buffers where the program says they are; those of one storage are one tensor."""
    kept: dict[object, torch.Tensor] = {}
    buffers = {name: program.constants[name] for name in program.graph_signature.non_persistent_buffers}
    for name, tensor in {**program.state_dict, **buffers}.items():
        path, _, local = name.rpartition(".")
        same = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype, type(tensor))
        tensor = kept.setdefault(same, tensor) if tensor.numel() else tensor
        if isinstance(tensor, torch.nn.Parameter):
            modules[path].register_parameter(local, tensor)
        else:
            modules[path].register_buffer(local, tensor, persistent=name not in buffers)
