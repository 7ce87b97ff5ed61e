"""What happens inside a play: which groups of states its walks pass, and what each of them stands for (S26c)."""

from backplay.circuits.circuit import Circuit, CircuitEdge, CircuitNode, circuit
from backplay.circuits.concepts import Concepts, Strongest, concepts

__all__ = ["Circuit", "CircuitEdge", "CircuitNode", "Concepts", "Strongest", "circuit", "concepts"]
