"""What is played on: capture, node kinds, simplification."""

from backplay.network.capture import capture
from backplay.network.graph import Network
from backplay.network.nodes import Node

__all__ = ["Network", "Node", "capture"]
