"""Turns evidence into owners: infers unrecorded ones from data flow, and projects owners onto a rewritten graph."""

from modelexport.ownership.bounded_walk import VisitBudget, downstream, region
from modelexport.ownership.inference import InferencePolicy, add_contexts, infer_missing
from modelexport.ownership.projection import Projection, project
from modelexport.ownership.shared_nodes import with_sharers
