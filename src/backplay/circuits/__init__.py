"""What happens inside a play: which groups of states its walks pass, and what each of them stands for (S26c)."""

from backplay.circuits.circuit import Circuit, CircuitEdge, CircuitNode, circuit

__all__ = ["Circuit", "CircuitEdge", "CircuitNode", "circuit"]
