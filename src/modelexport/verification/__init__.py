"""An exported file against PyTorch: shares no code with what made it."""

from __future__ import annotations

from modelexport.verification.contamination_by_value import judge_attributions
from modelexport.verification.difference import Difference
from modelexport.verification.module_verification import verify_modules
from modelexport.verification.report import CallVerification, VerificationReport, verification_schema

__all__ = [
    "CallVerification",
    "Difference",
    "VerificationReport",
    "judge_attributions",
    "verification_schema",
    "verify_modules",
]
