"""Weights of one architecture as the beginning of another's: what does the same is carried over, cut, grown or regrouped."""

from __future__ import annotations

from anyformer.surgery.anatomy import Anatomy as Anatomy
from anyformer.surgery.carrying import CarriedTensor as CarriedTensor
from anyformer.surgery.carrying import Operation as Operation
from anyformer.surgery.depth import Layer as Layer
from anyformer.surgery.depth import as_they_stand as as_they_stand
from anyformer.surgery.depth import read_layers as read_layers
from anyformer.surgery.plans import MATTER_MOST as MATTER_MOST
from anyformer.surgery.plans import Importance as Importance
from anyformer.surgery.vocabulary import rows_by_text as rows_by_text
from anyformer.surgery.vocabulary import rows_in_order as rows_in_order
from anyformer.surgery.width import Widening as Widening
