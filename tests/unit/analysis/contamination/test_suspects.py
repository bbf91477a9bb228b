"""The search for wrong owners replaces owners without changing those it was given."""

from __future__ import annotations

import pytest
from tests.conftest import Exporter
from tests.support.breaking import random_moves, with_owners

from modelexport.analysis.contamination.call_index import NodeOwners
from modelexport.analysis.contamination.owner_check import find_suspects
from modelexport.analysis.validation.rule import ValidatedFile

pytestmark = pytest.mark.xdist_group("no_grad")


def test_search_does_not_change_the_owners_and_finds_the_same_again(exported: Exporter) -> None:
    check = ValidatedFile(exported("no_grad").path).owner_check
    moves = dict(random_moves(check.document, 3, seed=1))
    owners = NodeOwners(with_owners(check.document, moves), check.flow, check.calls)
    nodes = range(len(check.flow.node_ids))
    before = [owners.calls_of(node) for node in nodes]
    found = find_suspects(check.rules, owners, nodes)
    assert any(suspect.supported for suspect in found)
    assert [owners.calls_of(node) for node in nodes] == before
    assert find_suspects(check.rules, owners, nodes) == found


def test_replacing_an_owner_returns_other_owners(exported: Exporter) -> None:
    check = ValidatedFile(exported("no_grad").path).owner_check
    owners = NodeOwners(check.document, check.flow, check.calls)
    owner = owners.owner(0)
    other = next(call for call in range(len(check.calls)) if call != owner)
    assert owners.with_owner(0, other).owner(0) == other
    assert owners.owner(0) == owner
