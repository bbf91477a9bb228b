"""Small models of packages for graphs, points, recommendation, ranking and tables."""

from __future__ import annotations

import torch
from benchmarks.package_model import (
    BATCH,
    Input,
    PackageModel,
    edges,
    floats,
    fractions,
    graph_of_node,
    ids,
    indices,
    made,
    padding,
)
from torch import nn


class _GraphClassifier(nn.Module):
    """Isomorphism network with a sum over each graph, as in that package's examples."""

    def __init__(self) -> None:
        from torch_geometric.nn import GIN

        super().__init__()
        self.network = GIN(8, 16, num_layers=2)
        self.classifier = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor, edges: torch.Tensor, graph_of_node: torch.Tensor) -> torch.Tensor:
        from torch_geometric.nn import global_add_pool

        return self.classifier(global_add_pool(self.network(x, edges), graph_of_node))


class _DenseGraphs(nn.Module):
    """Two layers on adjacency matrices of padded graphs."""

    def __init__(self) -> None:
        from torch_geometric.nn import DenseSAGEConv

        super().__init__()
        self.first, self.second = DenseSAGEConv(8, 16), DenseSAGEConv(16, 16)

    def forward(self, x: torch.Tensor, adjacency: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x, adjacency).relu(), adjacency)


def _embedded_numbers() -> nn.Module:
    from rtdl_num_embeddings import PeriodicEmbeddings

    embeddings = PeriodicEmbeddings(6, 8, n_frequencies=8, lite=False)
    return nn.Sequential(embeddings, nn.Flatten(), nn.Linear(48, 16), nn.ReLU(), nn.Linear(16, 2))


def _ranking() -> nn.Module:
    from allrank.models.model import FCModel, LTRModel, OutputLayer
    from allrank.models.transformer import make_transformer

    encoder = make_transformer(N=2, d_ff=32, h=2, dropout=0.0, n_features=16, positional_encoding=None)
    first = FCModel([16], input_norm=True, activation=None, dropout=0.0, n_features=10)
    return LTRModel(first, encoder, OutputLayer(16, d_output=1, output_activation=None))


MODELS = (
    # Graphs, molecules and points.
    PackageModel(
        "torch-geometric",
        "GCN",
        "graphs",
        made("torch_geometric.nn.GCN", 8, 16, 2, out_channels=3),
        (floats("nodes 8"), edges("nodes")),
        "nodes edges",
        ((10, 24), (5, 8), (14, 41), (30, 100)),
    ),
    PackageModel(
        "torch-geometric",
        "GAT",
        "graphs",
        made("torch_geometric.nn.GAT", 8, 16, 2, heads=2, out_channels=4),
        (floats("nodes 8"), edges("nodes")),
        "nodes edges",
        ((10, 24), (5, 8), (14, 41), (30, 100)),
    ),
    PackageModel(
        "torch-geometric",
        "GIN with a sum for each graph",
        "graphs",
        _GraphClassifier,
        (floats("nodes 8"), edges("nodes"), graph_of_node("nodes")),
        "nodes edges graphs",
        ((10, 24, 2), (5, 8, 1), (14, 41, 3), (30, 100, 5)),
    ),
    PackageModel(
        "torch-geometric",
        "DenseSAGEConv",
        "graphs",
        _DenseGraphs,
        (floats("batch nodes 8"), fractions("batch nodes nodes")),
        "batch nodes",
        ((2, 6), (1, 4), (3, 9), (5, 20)),
    ),
    PackageModel(
        "egnn-pytorch",
        "EGNN_Network",
        "graphs",
        made("egnn_pytorch.EGNN_Network", depth=2, dim=8, num_nearest_neighbors=3, num_tokens=9),
        (ids("batch nodes", 9), floats("batch nodes 3")),
        "batch nodes",
        ((2, 8), (1, 5), (3, 11), (4, 20)),
    ),
    PackageModel(
        "graph-transformer-pytorch",
        "GraphTransformer",
        "graphs",
        made(
            "graph_transformer_pytorch.GraphTransformer", 16, 2, dim_head=8, heads=2, edge_dim=4, with_feedforwards=True
        ),
        (floats("batch nodes 16"), floats("batch nodes nodes 4")),
        "batch nodes",
        ((2, 6), (1, 4), (3, 9), (5, 14)),
    ),
    PackageModel(
        "point-transformer-pytorch",
        "PointTransformerLayer",
        "points",
        made(
            "point_transformer_pytorch.PointTransformerLayer",
            dim=16,
            pos_mlp_hidden_dim=8,
            attn_mlp_hidden_mult=2,
            num_neighbors=4,
        ),
        (floats("batch points 16"), floats("batch points 3")),
        "batch points",
        ((2, 10), (1, 6), (3, 17), (2, 32)),
    ),
    # Recommendation, ranking and tables.
    PackageModel(
        "torchfm",
        "DeepFM",
        "recommendation",
        made("torchfm.model.dfm.DeepFactorizationMachineModel", [7, 5, 9], 8, (16, 8), 0.1),
        (ids("batch 3", 5),),
        BATCH,
        ((4,), (1,), (9,), (32,)),
    ),
    PackageModel(
        "torchfm",
        "AutoInt",
        "recommendation",
        made("torchfm.model.afi.AutomaticFeatureInteractionModel", [7, 5, 9], 8, 8, 2, 2, (16,), (0.1, 0.1, 0.1)),
        (ids("batch 3", 5),),
        BATCH,
        ((4,), (1,), (9,), (32,)),
    ),
    PackageModel(
        "torch-geometric",
        "LightGCN",
        "recommendation",
        made("torch_geometric.nn.LightGCN", 20, 8, 2),
        (Input("2 edges", lambda size, _: torch.randint(0, 20, size)),),
        "edges",
        ((24,), (9,), (40,), (77,)),
    ),
    PackageModel(
        "allrank",
        "LTRModel",
        "ranking",
        _ranking,
        (floats("batch items 10"), padding("batch items"), indices("batch items")),
        "batch items",
        ((2, 7), (1, 4), (3, 12), (5, 30)),
    ),
    PackageModel(
        "pytorch-tabnet",
        "TabNet",
        "tables",
        made("pytorch_tabnet.tab_network.TabNetNoEmbeddings", 10, 3, virtual_batch_size=8),
        (floats("batch 10"),),
        BATCH,
        ((6,), (1,), (8,), (21,)),
    ),
    PackageModel(
        "rtdl-revisiting-models",
        "FTTransformer",
        "tables",
        made(
            "rtdl_revisiting_models.FTTransformer",
            n_cont_features=3,
            cat_cardinalities=[4, 7],
            d_out=2,
            n_blocks=2,
            d_block=16,
            attention_n_heads=2,
            attention_dropout=0.1,
            ffn_d_hidden_multiplier=2.0,
            ffn_dropout=0.1,
            residual_dropout=0.0,
        ),
        (floats("batch 3"), ids("batch 2", 4)),
        BATCH,
        ((4,), (1,), (9,), (32,)),
    ),
    PackageModel(
        "rtdl-num-embeddings",
        "periodic embeddings",
        "tables",
        _embedded_numbers,
        (floats("batch 6"),),
        BATCH,
        ((4,), (1,), (9,), (32,)),
    ),
    PackageModel(
        "tabm",
        "TabM",
        "tables",
        made(
            "tabm.TabM",
            n_num_features=4,
            cat_cardinalities=[3, 5],
            d_out=2,
            k=4,
            n_blocks=2,
            d_block=16,
            dropout=0.1,
            start_scaling_init="random-signs",
        ),
        (floats("batch 4"), ids("batch 2", 3)),
        BATCH,
        ((4,), (1,), (9,), (32,)),
    ),
)
