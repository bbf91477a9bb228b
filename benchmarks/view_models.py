"""Models whose pages are measured and looked at: of real size, small ones of each kind, and a generated one."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import torch
from benchmarks.tagged_models import write_tagged_model
from onnx import TensorProto, helper
from torch import nn

import modelexport

Built = tuple[nn.Module, Any]
SEED = 0
GENERATED_NODES = 20_000


def _tokens(length: int = 16) -> torch.Tensor:
    return torch.randint(3, 99, (1, length))


def bert(hidden: int, layers: int) -> Built:
    """A BERT; 768 and 12 is bert-base."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64 or 1,
        intermediate_size=4 * hidden,
    )
    tokens = _tokens()
    return BertModel(config), {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


def gpt2(hidden: int, layers: int) -> Built:
    """A GPT-2; 768 and 12 is the smallest that was published."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_embd=hidden, n_layer=layers, n_head=hidden // 64 or 1, use_cache=False)
    return GPT2LMHeadModel(config), {"input_ids": _tokens()}


def resnet(depths: tuple[int, ...]) -> Built:
    """A ResNet; 3, 4, 6, 3 is ResNet-50."""
    from transformers import ResNetConfig, ResNetForImageClassification

    return ResNetForImageClassification(ResNetConfig(depths=list(depths))), {"pixel_values": torch.randn(1, 3, 64, 64)}


def whisper(hidden: int, layers: int) -> Built:
    """A Whisper; 384 and 4 is whisper-tiny."""
    from transformers import WhisperConfig, WhisperModel

    sizes = {f"{part}_layers": layers for part in ("encoder", "decoder")}
    sizes |= {f"{part}_attention_heads": hidden // 64 or 1 for part in ("encoder", "decoder")}
    sizes |= {f"{part}_ffn_dim": 4 * hidden for part in ("encoder", "decoder")}
    model = WhisperModel(WhisperConfig(d_model=hidden, use_cache=False, **sizes))
    return model, {"input_features": torch.randn(1, 80, 3000), "decoder_input_ids": _tokens(8)}


def mixtral(hidden: int, layers: int) -> Built:
    """A Mixtral: layers of eight experts."""
    from transformers import MixtralConfig, MixtralModel

    config = MixtralConfig(
        vocab_size=999,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        use_cache=False,
    )
    return MixtralModel(config), {"input_ids": _tokens()}


class ConvBlock(nn.Module):
    """A convolution that the exporter fuses with its normalization."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(before, after, 3, padding=1)
        self.norm = nn.BatchNorm2d(after)
        self.act = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.norm(self.conv(x)))


class Cnn(nn.Module):
    """Two blocks and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(ConvBlock(3, 8), nn.MaxPool2d(2), ConvBlock(8, 16))
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x).mean((2, 3)))


class Conditional(nn.Module):
    """A model whose branches are subgraphs of one node."""

    def __init__(self) -> None:
        super().__init__()
        self.yes, self.no = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda y: self.yes(y) * 2, lambda y: self.no(y) - 1, (x,)) + 1


def write_local_functions(path: Path) -> Path:
    """A file without our metadata: three calls of a local function, with the scopes that torch writes."""
    nodes, value = [], "x"
    for number in range(3):
        node = helper.make_node("Block", [value, "weight"], [f"block_{number}"], domain="models")
        _name_scope(node, ["", f"blocks.{number}"], ["models.Net", "models.Block"])
        nodes.append(node)
        value = f"block_{number}"
    head = helper.make_node("Softmax", [value], ["y"], axis=-1)
    _name_scope(head, ["", "head"], ["models.Net", "torch.nn.modules.activation.Softmax"])
    body = [helper.make_node("MatMul", ["a", "w"], ["product"]), helper.make_node("Relu", ["product"], ["b"])]
    for node in body:
        _name_scope(node, ["", "blocks.0"], ["models.Net", "models.Block"])
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("models", 1)]
    function = helper.make_function("models", "Block", ["a", "w"], ["b"], body, opsets[:1])
    shape = [2, 4]
    graph = helper.make_graph(
        [*nodes, head],
        "main_graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [helper.make_tensor("weight", TensorProto.FLOAT, [4, 4], [number / 16 for number in range(16)])],
    )
    model = helper.make_model(graph, functions=[function], opset_imports=opsets, ir_version=10)
    onnx.save_model(model, path)
    return path


def _name_scope(node: onnx.NodeProto, names: list[str], classes: list[str]) -> None:
    node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=str([*names, "node"]))
    node.metadata_props.add(key="pkg.torch.onnx.class_hierarchy", value=str([*classes, "aten.op"]))


MEASURED: dict[str, Callable[[], Built]] = {
    "bert-base": lambda: bert(768, 12),
    "gpt2": lambda: gpt2(768, 12),
    "resnet-50": lambda: resnet((3, 4, 6, 3)),
    "whisper-tiny": lambda: whisper(384, 4),
    "mixtral": lambda: mixtral(64, 8),
}
SMALL: dict[str, Callable[[], Built]] = {
    "bert-12-layers": lambda: bert(64, 12),
    "gpt2-small": lambda: gpt2(64, 3),
    "cnn": lambda: (Cnn(), torch.randn(2, 3, 16, 16)),
    "cond": lambda: (Conditional(), (torch.randn(2, 4),)),
    "whisper-small": lambda: whisper(64, 2),
    "mixtral-small": lambda: mixtral(32, 2),
}


def write_model(name: str, folder: Path) -> Path:
    """Export a model, or generate one, unless its file is in the folder."""
    path = folder / f"{name}.onnx"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    if name == "generated":
        return write_tagged_model(path, GENERATED_NODES)
    if name == "local-functions":
        return write_local_functions(path)
    torch.manual_seed(SEED)
    model, inputs = {**MEASURED, **SMALL}[name]()
    modelexport.export_model(model.eval(), inputs, path, check="off")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", default=[*SMALL, "generated", "local-functions"])
    options = parser.parse_args()
    for name in options.names:
        print(write_model(name, options.folder))


if __name__ == "__main__":
    main()
