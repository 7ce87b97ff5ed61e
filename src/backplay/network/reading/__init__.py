"""From an exported program to the nodes that are played on: one function for each way to read an operator."""
