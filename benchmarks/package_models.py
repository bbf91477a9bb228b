"""The models of other packages that are exported: see `benchmarks.other_packages`."""

from __future__ import annotations

from benchmarks import package_models_images, package_models_sequences, package_models_tables
from benchmarks.package_model import PackageModel

MODELS: tuple[PackageModel, ...] = (
    *package_models_sequences.MODELS,
    *package_models_tables.MODELS,
    *package_models_images.MODELS,
)


def find_model(name: str) -> PackageModel:
    """The model with this name."""
    return next(model for model in MODELS if str(model) == name)
