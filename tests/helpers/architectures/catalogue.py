"""All families by name."""

from architectures.from_torch import TORCH
from architectures.from_transformers import HUB
from architectures.timm_attention import ATTENTION
from architectures.timm_convolution import CONVOLUTION

CATALOGUE = CONVOLUTION | ATTENTION | HUB | TORCH
