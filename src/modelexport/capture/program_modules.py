"""The modules of an exported program as `nn.Module`s: paths, classes and weights as the program records them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, NoReturn

import torch

from modelexport.capture.module_stack import read_module_stack
from modelexport.capture.module_tree import qualified_name
from modelexport.errors import StrategyIncompatibleError
from modelexport.hierarchy import MAX_DEPTH, ROOT_PATH, ancestor_paths

# The class of a module that the program never calls, so that it does not record the class.
_UNKNOWN_CLASS = qualified_name(torch.nn.Module)


class RecordedModule(torch.nn.Module):
    """A module of an exported program: its class and weights, without its code."""

    def forward(self) -> NoReturn:
        """Raise: a program has the operators that ran, not the code of its modules."""
        raise NotImplementedError("a module of an exported program cannot be run on its own: run the whole program")


class ExportedProgramModule(torch.nn.Module):
    """An exported program as a model that can be called, with the modules of the model it was exported from."""

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        super().__init__()
        # Names that no child module has: a module cannot have a child with the name of an attribute.
        self._modelexport_program = program
        self._modelexport_runners: list[torch.nn.Module] = []

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the whole program."""
        if not self._modelexport_runners:
            # In a list, so that torch does not register it as a child module.
            self._modelexport_runners.append(self._modelexport_program.module())
        return self._modelexport_runners[0](*args, **kwargs)


def program_of(model: ExportedProgramModule) -> torch.export.ExportedProgram:
    """Return the program of the model."""
    return model._modelexport_program


def refuse_program(strategy: str, model: torch.nn.Module) -> None:
    """Refuse an exported program, for strategies that need the Python code of a model.

    Raises:
        StrategyIncompatibleError: The model is an exported program.
    """
    if isinstance(model, ExportedProgramModule):
        raise StrategyIncompatibleError(
            strategy,
            "an exported program has no Python code to trace, and its modules cannot be run one by one.",
            "Use strategy 'fx', which reads the calls that the program records, or export the original model.",
        )


def model_of_program(program: torch.export.ExportedProgram) -> ExportedProgramModule:
    """Return the program as a model, with its modules at their recorded paths.

    Raises:
        ValueError: The recorded paths are not valid.
    """
    classes = _recorded_classes(program)
    root: ExportedProgramModule = _new_class(classes[ROOT_PATH], ExportedProgramModule, _forward(program))(program)
    modules: dict[str, torch.nn.Module] = {ROOT_PATH: root}
    for path, kind in classes.items():
        if path != ROOT_PATH:
            parent, _, name = path.rpartition(".")
            module = _new_class(kind, RecordedModule)()
            modules[parent].add_module(name, module)
            modules[path] = module
    _add_weights(program, modules)
    for module in modules.values():
        module.training = False
    return root


def _recorded_classes(program: torch.export.ExportedProgram) -> dict[str, str]:
    """Return the class of each module by its path, parents first, in the order of the model's own modules."""
    called: dict[str, str] = {}
    for graph in program.graph_module.modules():
        for node in graph.graph.nodes if isinstance(graph, torch.fx.GraphModule) else ():
            stack = read_module_stack(node)
            # A stack that does not begin with the root has entries that are not modules.
            if stack and stack[0].path == ROOT_PATH:
                called.update({entry.path: entry.class_name for entry in stack})
    listed = [entry.fqn for entry in program.module_call_graph]
    repeated = {name for name in listed if name.partition("@")[0] in listed and "@" in name}
    weights = [name.rpartition(".")[0] for name in (*program.state_dict, *program.constants)]
    classes = {ROOT_PATH: called.get(ROOT_PATH, _UNKNOWN_CLASS)}
    for path in (*(name for name in listed if name not in repeated), *called, *weights):
        if path.count(".") > MAX_DEPTH:
            raise ValueError(f"modules are nested {path.count('.')} levels deep")
        for part in (*reversed(list(ancestor_paths(path))), path):
            classes.setdefault(part, called.get(part, _UNKNOWN_CLASS))
    return classes


def _new_class(qualified: str, base: type[Any], forward: Any = None) -> type[Any]:
    """Return a subclass of `base` with the name of the recorded class."""
    module, _, name = qualified.rpartition(".")
    own = {"__module__": module, "__qualname__": name, "__doc__": base.__doc__}
    return type(name, (base,), own if forward is None else {**own, "forward": forward})


def _forward(program: torch.export.ExportedProgram) -> Any:
    """Return the root's forward, with the argument names that the program records."""

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
    """Add the parameters and buffers to the modules; tensors of one storage become one tensor."""
    unique: dict[object, torch.Tensor] = {}
    buffers = {name: program.constants[name] for name in program.graph_signature.non_persistent_buffers}
    for name, tensor in {**program.state_dict, **buffers}.items():
        path, _, local = name.rpartition(".")
        key = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype, type(tensor))
        tensor = unique.setdefault(key, tensor) if tensor.numel() else tensor
        if isinstance(tensor, torch.nn.Parameter):
            modules[path].register_parameter(local, tensor)
        else:
            modules[path].register_buffer(local, tensor, persistent=name not in buffers)
