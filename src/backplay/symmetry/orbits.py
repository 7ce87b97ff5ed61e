"""What may change places with what: units of tied channels, cells of units that keep together, orbits.

An orbit is a list of units, or of cells, any of which may take the place of any other. A head is a cell: its features
change places within it, and heads change places as wholes. So do the groups of a convolution. Cells may lie in cells.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from backplay.symmetry.ledger import Ledger


@dataclass
class Leaf:
    """A unit: channels that move as one, say a feature of queries and its twin of keys. One number for each role."""

    channels: tuple[int, ...]


@dataclass
class Branch:
    """A cell that moves as a whole; `inner` are the orbits within it, in the same order in every cell of its orbit."""

    inner: list[list[Member]]


Member = Leaf | Branch


@dataclass
class _Nest:
    """A cell while it is found out what lies in it; units and cells are numbers."""

    units: list[int] = field(default_factory=list[int])
    cells: list[int] = field(default_factory=list[int])
    within: set[int] = field(default_factory=set[int])  # coarser cells
    fixed: bool = False


class Forest:
    """Units and cells of a ledger, and the orbits that they form."""

    def __init__(self, ledger: Ledger, signatures: Sequence[int]) -> None:
        self.units: dict[int, list[int]] = defaultdict(list)  # channels by the first of those that they are tied to
        for channel in range(len(ledger)):
            self.units[ledger.find(channel)].append(channel)
        self.held = {ledger.find(c) for c in ledger.held}  # units that stay where they are
        self._kinds: dict[Hashable, int] = {}
        self._kind_of: dict[int, int] = {}
        for unit, channels in self.units.items():
            channels.sort(key=lambda c: (ledger.maker[c], signatures[c], c))
            self._kind_of[unit] = self._kind(tuple((ledger.maker[c], signatures[c]) for c in channels))
        self._cells: list[_Nest] = []
        self._arrange(ledger)

    def _kind(self, key: Hashable) -> int:
        return self._kinds.setdefault(key, len(self._kinds))

    # ---------------------------------------------------------------- cells in cells

    def _arrange(self, ledger: Ledger) -> None:
        """Cells of different bundles that divide the same channels alike are one; finer ones lie in coarser ones."""
        bundles, home = self._bundled(ledger), dict[int, list[int]]()
        parent = list(range(len(self._cells)))

        def find(cell: int) -> int:
            while parent[cell] != cell:
                cell = parent[cell]
            return cell

        meets: dict[tuple[int, int], dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
        for unit, cells in bundles.items():
            home[unit] = list(cells.values())
            for a in cells:
                for b in cells:
                    if a != b:
                        meets[a, b][cells[a]].add(cells[b])
        for (a, b), met in meets.items():
            inside, around = (all(len(s) == 1 for s in m.values()) for m in (met, meets[b, a]))
            for cell, others in met.items():
                if not inside and not around:
                    self._cells[cell].fixed = True
                    self.held.update(u for u, h in home.items() if cell in h and others & set(h))
                elif inside and around:
                    first, second = sorted((find(cell), find(min(others))))
                    parent[second] = first
                elif inside:
                    self._cells[cell].within |= others
        self._settle(home, [find(c) for c in range(len(self._cells))])

    def _bundled(self, ledger: Ledger) -> dict[int, dict[int, int]]:
        """For each unit, its cell in every bundle; a unit in two cells of one bundle stays, and so do they."""
        cells_of: dict[int, dict[int, int]] = defaultdict(dict)
        for b, bundle in enumerate(ledger.bundles):
            for cell in bundle:
                self._cells.append(_Nest(fixed=cell.fixed))
                here = len(self._cells) - 1
                for unit in {ledger.find(c) for c in cell.channels}:
                    other = cells_of[unit].setdefault(b, here)
                    if other != here:
                        self._cells[other].fixed = self._cells[here].fixed = True
                        self.held.add(unit)
        return cells_of

    def _settle(self, home: dict[int, list[int]], representative: list[int]) -> None:
        """Each unit and each cell lies in the finest cell around it; where there is no finest one, it stays."""
        for cell, own in enumerate(self._cells):
            first = self._cells[representative[cell]]
            if first is not own:
                first.within |= own.within
                first.fixed |= own.fixed
        for cell in self._cells:
            cell.within = {representative[c] for c in cell.within}
        around = {c: self._ancestors(c) for c in set(representative)}
        for c in sorted(around):
            finest = self._finest(self._cells[c].within - {c}, around)
            if self._cells[c].within - {c}:
                if finest is None:
                    self._cells[c].fixed = True
                else:
                    self._cells[finest].cells.append(c)
        inner = {c for cell in self._cells for c in cell.cells}
        self._loose = [c for c in sorted(around) if c not in inner]
        self._free: list[int] = []
        for unit in self.units:
            cells = {representative[c] for c in home.get(unit, [])}
            finest = self._finest(cells, around)
            if cells and finest is None:
                self.held.add(unit)
            (self._free if finest is None else self._cells[finest].units).append(unit)

    def _ancestors(self, cell: int) -> set[int]:
        above, new = set[int](), set(self._cells[cell].within)
        while new:
            above |= new
            new = {a for c in new for a in self._cells[c].within} - above
        return above

    def _finest(self, cells: set[int], around: dict[int, set[int]]) -> int | None:
        """The cell that lies in all others."""
        return next((c for c in sorted(cells) if cells - {c} <= around[c]), None)

    # ---------------------------------------------------------------- given moves

    def carried(self, wanted: Mapping[int, int]) -> dict[int, int]:
        """All channels that move if some channels take over what others were; ValueError where they cannot."""
        unit = {c: u for u, channels in self.units.items() for c in channels}
        cell = {u: k for k, own in enumerate(self._cells) for u in own.units}
        moves: dict[int, int] = {}
        for c, taken in wanted.items():
            here, there = unit[c], unit[taken]
            roles = self.units[here].index(c), self.units[there].index(taken)
            if moves.setdefault(here, there) != there or (here != there and roles[0] != roles[1]):
                raise ValueError("channels that are tied do not move as one")
        for here, there in moves.items():
            if here != there and (self.held & {here, there} or self._kind_of[here] != self._kind_of[there]):
                raise ValueError("channels that stay, or of different kinds")
        places: dict[int, int] = {}
        for here, there in moves.items():
            if (here in cell) != (there in cell) or (
                here in cell and places.setdefault(cell[here], cell[there]) != cell[there]
            ):
                raise ValueError("what keeps together is torn apart")
        moves |= self._with_cells(places, moves)
        return {c: t for u, v in moves.items() for c, t in zip(self.units[u], self.units[v], strict=True)}

    def _with_cells(self, places: Mapping[int, int], moves: Mapping[int, int]) -> dict[int, int]:
        """The other units of cells that move as wholes, kind by kind in their order."""
        others: dict[int, int] = {}
        for here, there in places.items():
            if here == there:
                continue
            if not self._movable(here) or self._shape(here) != self._shape(there) or self._cells[here].cells:
                raise ValueError("a cell that stays")
            pairs = zip(*(_by(self._kind_of.__getitem__, self._cells[k].units) for k in (here, there)), strict=True)
            for own, other in pairs:
                if not set(own) & moves.keys():
                    others |= dict(zip(own, other, strict=True))
                elif {moves.get(u) for u in own} != set(other):
                    raise ValueError("what keeps together is torn apart")
        return others

    # ---------------------------------------------------------------- orbits

    def orbits(self) -> list[list[Member]]:
        """Lists of members that may change places, those of early layers first."""
        orbits = self._orbits(self._free, self._loose)
        return sorted(orbits, key=lambda members: min(channels_in(members)))

    def _orbits(self, units: Sequence[int], cells: Sequence[int]) -> list[list[Member]]:
        orbits: list[list[Member]] = []
        for same in _by(self._kind_of.__getitem__, [u for u in units if u not in self.held]):
            orbits.append([Leaf(tuple(self.units[u])) for u in same])
        for same in _by(self._shape, [c for c in cells if self._movable(c)]):
            if len(same) > 1:
                orbits.append([self._branch(c) for c in same])
            else:
                orbits += self._orbits(self._cells[same[0]].units, self._cells[same[0]].cells)
        for c in cells:
            if not self._movable(c):
                orbits += self._orbits(self._cells[c].units, self._cells[c].cells)
        return [members for members in orbits if len(members) > 1]

    def _movable(self, cell: int) -> bool:
        own = self._cells[cell]
        return not own.fixed and not self.held & set(own.units) and all(self._movable(c) for c in own.cells)

    def _shape(self, cell: int) -> int:
        """Equal for cells that hold the same kinds of units and cells, as many of each."""
        own = self._cells[cell]
        kinds = [self._kind_of[u] for u in own.units] + [self._shape(c) for c in own.cells]
        return self._kind(("cell", *sorted(kinds)))

    def _branch(self, cell: int) -> Branch:
        own = self._cells[cell]
        inner: list[list[Member]] = [
            [Leaf(tuple(self.units[u])) for u in same] for same in _by(self._kind_of.__getitem__, own.units)
        ]
        return Branch(inner + [[self._branch(c) for c in same] for same in _by(self._shape, own.cells)])


def _by(key: Callable[[int], int], items: Sequence[int]) -> list[list[int]]:
    """Items with equal keys, in the order of their keys."""
    alike: dict[int, list[int]] = defaultdict(list)
    for item in items:
        alike[key(item)].append(item)
    return [alike[k] for k in sorted(alike)]


def channels_in(members: Sequence[Member]) -> list[int]:
    """All channels of an orbit."""
    found: list[int] = []
    for member in members:
        below = [member.channels] if isinstance(member, Leaf) else [channels_in(inner) for inner in member.inner]
        found += [c for channels in below for c in channels]
    return found


def leaf_kinds(members: Sequence[Member]) -> list[list[Leaf]]:
    """The leaves of an orbit, kind by kind: leaves in the same place of cells that are equals are of one kind."""
    if isinstance(members[0], Leaf):
        return [[m for m in members if isinstance(m, Leaf)]]
    cells = [m for m in members if isinstance(m, Branch)]
    inner = [[m for cell in cells for m in cell.inner[k]] for k in range(len(cells[0].inner))]
    return [leaves for same in inner for leaves in leaf_kinds(same)]


def rotations(members: Sequence[Member]) -> int:
    """How many rotations of an orbit pair each of its leaves with each of the same kind."""
    first = members[0]
    return len(members) * (1 if isinstance(first, Leaf) else max(rotations(inner) for inner in first.inner))


def rotated(left: Sequence[Member], right: Sequence[Member], step: int) -> list[tuple[Leaf, Leaf]]:
    """The pairs of one rotation: each member with the one `step` places on, and so on within cells."""
    further, step = divmod(step, len(left))
    pairs: list[tuple[Leaf, Leaf]] = []
    for k, one in enumerate(left):
        other = right[(k + step) % len(right)]
        if isinstance(one, Leaf) and isinstance(other, Leaf):
            pairs.append((one, other))
        elif isinstance(one, Branch) and isinstance(other, Branch):
            for mine, theirs in zip(one.inner, other.inner, strict=True):
                pairs += rotated(mine, theirs, further)
    return pairs
