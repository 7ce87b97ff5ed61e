"""From an exported program to the nodes that are played on.

`program` walks over the calls and `mutation` undoes changes in place; each call is read by a function that its row in
`network.operators` names: sums and products (`arithmetic`), convolutions and linear layers (`affine`, and `products`
of two live tensors), activations, attention, choices (maxima, `where`), mixes (means, resizing, scatter), norms
(`spelled_norms` where they are written out), wires, and operators that stand for several calls (`spelled`). `builder`
collects what they make, `reach` keeps what counts and refuses what cannot be played, `layouts` finds the samples.
"""
