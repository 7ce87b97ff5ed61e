"""What is played on: capture, node kinds, simplification."""

from backplay.network.capture import capture
from backplay.network.graph import Model, Network, read_model
from backplay.network.nodes import Node

__all__ = ["Model", "Network", "Node", "capture", "read_model"]
