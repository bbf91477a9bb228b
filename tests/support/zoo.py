"""The models of the tests: small, of many kinds, each built the same way every time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.support.small_configs import gpt2_config, mixtral_config, whisper_config

SEED = 20


@dataclasses.dataclass(frozen=True)
class ExampleModel:
    """A model with example inputs, and how to make its axes dynamic where it can."""

    name: str
    model: nn.Module
    inputs: Any
    dynamic_shapes: Any = None


_BUILDERS: dict[str, Callable[[], tuple[Any, ...]]] = {}


def example(build: Callable[[], tuple[Any, ...]]) -> Callable[[], tuple[Any, ...]]:
    _BUILDERS[build.__name__] = build
    return build


def build(name: str) -> ExampleModel:
    torch.manual_seed(SEED)
    model, inputs, *dynamic = _BUILDERS[name]()
    for module in model.modules():
        # As new, they change next to nothing: what a norm made could not be told from what it was given.
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is not None:
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2.0)
    return ExampleModel(name, model.eval(), inputs, dynamic[0] if dynamic else None)


def names() -> list[str]:
    return list(_BUILDERS)


def _tokens(batch: int = 2, length: int = 7, vocabulary: int = 99) -> torch.Tensor:
    return torch.randint(1, vocabulary, (batch, length))


_BATCH = torch.export.Dim.AUTO

# --- transformers ----------------------------------------------------------------------------------------------


@example
def bert() -> tuple[Any, ...]:
    from transformers import BertConfig, BertModel

    config = BertConfig(vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=37)
    tokens = _tokens()
    mask = torch.ones_like(tokens)
    mask[0, -2:] = 0
    inputs = {"input_ids": tokens, "attention_mask": mask}
    return BertModel(config), inputs, {name: {0: _BATCH, 1: _BATCH} for name in inputs}


@example
def gpt2() -> tuple[Any, ...]:
    from transformers import GPT2Model

    config = gpt2_config(use_cache=False)
    return GPT2Model(config), {"input_ids": _tokens()}, {"input_ids": {0: _BATCH, 1: _BATCH}}


@example
def vit() -> tuple[Any, ...]:
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=37,
        image_size=30,
        patch_size=10,
    )
    return ViTModel(config), {"pixel_values": torch.randn(2, 3, 30, 30)}, {"pixel_values": {0: _BATCH}}


@example
def resnet() -> tuple[Any, ...]:
    from transformers import ResNetConfig, ResNetModel

    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 2], layer_type="basic")
    return ResNetModel(config), {"pixel_values": torch.randn(2, 3, 32, 32)}, {"pixel_values": {0: _BATCH}}


@example
def whisper() -> tuple[Any, ...]:
    from transformers import WhisperModel

    config = whisper_config(use_cache=False)
    return WhisperModel(config), {"input_features": torch.randn(1, 8, 40), "decoder_input_ids": _tokens(1, 5)}


@example
def albert() -> tuple[Any, ...]:
    from transformers import AlbertConfig, AlbertModel

    config = AlbertConfig(
        vocab_size=99,
        embedding_size=16,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=37,
    )
    return AlbertModel(config), {"input_ids": _tokens()}, {"input_ids": {0: _BATCH, 1: _BATCH}}


# --- plain torch -----------------------------------------------------------------------------------------------


class ConvBlock(nn.Module):
    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inside, outside, 3, padding=1)
        self.norm = nn.BatchNorm2d(outside)
        self.act = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.norm(self.conv(x)))


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(ConvBlock(3, 8), nn.MaxPool2d(2), ConvBlock(8, 16))
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.dropout(self.features(x).mean((2, 3))))


@example
def cnn() -> tuple[Any, ...]:
    model = Cnn()
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2)
    return model, torch.randn(2, 3, 16, 16), ({0: _BATCH},)


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module], **options: Any) -> None:
        super().__init__()
        self.rnn = kind(6, 8, batch_first=True, **options)
        self.head = nn.Linear(16 if options.get("bidirectional") else 8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sequence, _ = self.rnn(x)
        return self.head(sequence)


@example
def lstm() -> tuple[Any, ...]:
    return Recurrent(nn.LSTM, num_layers=2, bidirectional=True), (torch.randn(2, 5, 6),)


@example
def gru() -> tuple[Any, ...]:
    return Recurrent(nn.GRU), (torch.randn(2, 5, 6),)


@example
def transformer_encoder() -> tuple[Any, ...]:
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), (torch.randn(2, 5, 16),), ({0: _BATCH},)


class Block(nn.Module):
    def __init__(self, size: int = 8) -> None:
        super().__init__()
        self.lin = nn.Linear(size, size)
        self.norm = nn.LayerNorm(size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(torch.relu(self.lin(x)) + x)


class SharedBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blk = Block()
        self.out = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = self.blk(x)
        return self.out(x)


@example
def shared_block() -> tuple[Any, ...]:
    return SharedBlock(), torch.randn(4, 8), ({0: _BATCH},)


class Aliased(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = Block()
        self.second = self.first
        self.list = nn.ModuleList([self.first, Block()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        x = self.second(x * 2)
        for block in self.list:
            x = block(x + 1)
        return x


@example
def aliased() -> tuple[Any, ...]:
    return Aliased(), torch.randn(4, 8)


class WithMethods(nn.Module):
    """Runs a child through a method other than `forward`, and iterates containers by hand."""

    class Child(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(8, 8)
            self.steps = nn.Sequential(nn.Linear(8, 8), nn.Tanh())

        def encode(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.sigmoid(self.lin(x)) * 3
            for step in self.steps:
                x = step(x)
            return x

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.encode(x) - 1

    def __init__(self) -> None:
        super().__init__()
        self.child = self.Child()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.child.encode(x) + self.child(x)


@example
def with_methods() -> tuple[Any, ...]:
    return WithMethods(), torch.randn(4, 8)


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.lin(x))


class Cond(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(8, 8)
        self.yes = Branch()
        self.no = Branch()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        return torch.cond(x.sum() > 0, lambda y: self.yes(y) * 2, lambda y: self.no(y) - 1, (x,)) + 1


@example
def cond() -> tuple[Any, ...]:
    return Cond(), torch.randn(4, 8)


class NoGrad(nn.Module):
    """Submodules under `no_grad` and `autocast`: the exporter's own record loses them."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = Block()
        self.trained = Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            x = self.frozen(x)
        x = self.trained(x)
        with torch.no_grad():
            return self.frozen(x * 2)


@example
def no_grad() -> tuple[Any, ...]:
    return NoGrad(), torch.randn(4, 8)


@dataclasses.dataclass
class Result:
    logits: torch.Tensor
    states: tuple[torch.Tensor, ...]
    extra: dict[str, torch.Tensor]


torch.export.register_dataclass(Result, serialized_type_name="tests.Result")


class NestedOutputs(nn.Module):
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(8, 8)

        def forward(self, pair: tuple[torch.Tensor, torch.Tensor], *, scale: torch.Tensor) -> Result:
            a, b = pair
            hidden = self.lin(a) * scale
            return Result(hidden, (a + b, hidden - b), {"squared": hidden * hidden, "unused": hidden.exp()})

    def __init__(self) -> None:
        super().__init__()
        self.inner = self.Inner()

    def forward(self, pair: tuple[torch.Tensor, torch.Tensor], options: dict[str, torch.Tensor]) -> Result:
        first = self.inner(pair, scale=options["scale"])
        return Result(first.logits + 1, first.states, {"sum": first.extra["squared"] + first.states[0]})


@example
def nested_outputs() -> tuple[Any, ...]:
    inputs = {
        "pair": (torch.randn(4, 8), torch.randn(4, 8)),
        "options": {"scale": torch.randn(4, 8)},
    }
    return NestedOutputs(), inputs


# --- models that plain torch.onnx.export cannot take -----------------------------------------------------------


def build_unexportable() -> ExampleModel:
    torch.manual_seed(SEED)
    model, inputs = _mixtral()
    return ExampleModel("mixtral", model.eval(), inputs)


def _mixtral() -> tuple[nn.Module, Any]:
    from transformers import MixtralModel

    config = mixtral_config(use_cache=False)
    return MixtralModel(config), {"input_ids": _tokens()}
