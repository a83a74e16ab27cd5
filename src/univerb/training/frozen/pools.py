"""What a stretch of text could be written with, and every way of writing it.

The candidates of a stretch are those of run time: the phrases of the chunks that retrieval brings
for the text before it, and of that text. Along the true text only a few nodes of the phrase tree
are ever reached (`modeling.phrase_tree`): those whose tokens the text begins with. So only the
phrases directly under these nodes are encoded, and the likelihood is exact all the same.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy
from numpy.typing import NDArray

from univerb.modeling.evidence import MAX_OVERLAP, Evidence
from univerb.phrases.hashing import Ints
from univerb.training.frozen.windows import Flags, Windows, hashes

Floats = NDArray[numpy.float64]


@dataclass(frozen=True, slots=True)
class CandidateTree:
    """Phrases as a tree; a node is a first token (0 to F - 1) or a phrase (F to F + K - 1)."""

    first: Ints
    """(F,) the first tokens, sorted."""
    keys: Ints
    """(K,) hashes of the phrases, sorted."""
    ids: Ints
    """(K, L) their tokens."""
    length: Ints
    """(K,)"""
    count: Ints
    """(K,) how often each stands in the candidates' texts."""
    children: Ints
    """(K,) the phrases by the node that they hang under."""
    edges: Ints
    """(F + K + 1,) where the phrases under each node begin among `children`."""

    @classmethod
    def of(cls, windows: Windows) -> "CandidateTree":
        """Collect the phrases of windows."""
        row, column = numpy.nonzero(windows.is_phrase)
        keys, index, count = numpy.unique(
            windows.keys[row, column], return_index=True, return_counts=True
        )
        row, column = row[index], column[index]
        first = numpy.unique(windows.ids[row, 0])
        # The longest shorter beginning that is a phrase, too, be it in another place.
        found, is_known = find(keys, windows.keys[row])
        is_known &= numpy.arange(windows.keys.shape[1]) < column[:, None]
        longest = numpy.where(is_known, numpy.arange(windows.keys.shape[1]), -1).max(1, initial=-1)
        parent = numpy.where(
            longest < 0,
            numpy.searchsorted(first, windows.ids[row, 0]),
            len(first) + found[numpy.arange(len(row)), longest],
        )
        children = numpy.argsort(parent, kind="stable")
        nodes = numpy.arange(len(first) + len(keys) + 1)
        edges = numpy.searchsorted(parent[children], nodes)
        return cls(first, keys, windows.ids[row], column + 1, count, children, edges)

    @property
    def sizes(self) -> Ints:
        """Number of phrases directly under each node."""
        return numpy.diff(self.edges)

    @property
    def totals(self) -> Ints:
        """How often phrases directly under each node stand in the candidates' texts."""
        return numpy.diff(numpy.cumsum(numpy.append(0, self.count[self.children]))[self.edges])

    def roots(self, tokens: Ints) -> Ints:
        """Return the nodes of first tokens, -1 where no phrase begins so."""
        found, is_known = find(self.first, tokens)
        return numpy.where(is_known, found, -1)

    def phrases(self, keys: Ints) -> Ints:
        """Return the phrases with these hashes, -1 where there is none."""
        found, is_known = find(self.keys, keys)
        return numpy.where(is_known, found, -1)


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of text, the choices along it, and the units that it can be written in.

    A choice is a place of the text and a node of the tree that the text has reached there: between
    stopping and the options, which are the phrases directly under it.
    """

    begin: int
    end: int
    state: Ints
    """(C,) the token after which each choice is made."""
    is_phrase: Flags
    """(C,) whether its node is a phrase, not only a first token."""
    arrival: Ints
    """(C,) the option that its node is, at an earlier choice; -1 for a first token."""
    total: Ints
    """(C,) occurrences of phrases under the node, whether or not all are among the options."""
    option: Ints
    """(O,) phrases, as indices into `CandidateTree.keys`."""
    choice: Ints
    """(O,) the choice that each is an option of."""
    log_weight: Floats
    """(O,) how many phrases an option stands for, where others were left out."""
    group_weight: Floats
    """(O,) how many of those with the same second token it stands for."""
    evidence: Evidence
    """(O,)"""
    unit_begin: Ints
    """(U,) tokens and phrases of the text, in its order."""
    unit_end: Ints
    taken: tuple[Ints, Ints]
    """(unit, option): the options that lead to each unit."""
    stopped: tuple[Ints, Ints]
    """(unit, choice): the choices that it ends with stopping."""


class _Reached(NamedTuple):
    """The nodes that the text reaches, word start by word start, each path from its root on."""

    start: Ints
    """The place of the text from which on the node is reached."""
    node: Ints
    end: Ints
    """The place after the node's last token."""


def stretch(
    pool: CandidateTree,
    ids: NDArray[numpy.int32],
    truth: Windows,
    span: tuple[int, int],
    max_options: int | None,
    generator: numpy.random.Generator,
) -> Stretch:
    """Find every way of writing a stretch of text.

    Args:
        pool: The candidates.
        ids: The text's tokens, with breaks where no phrase may be.
        truth: Its windows in the stretch, whether or not they are phrases.
        span: First token and end of the stretch.
        max_options: Of a choice: so many of the most frequent, and a sample of as many others, each
            to stand for several. None for no limit.
        generator: Draws the sample.

    Returns:
        The stretch.
    """
    reached = _reached(pool, truth, span[1])
    has_children = pool.sizes[reached.node] > 0
    choice_of = numpy.where(has_children, numpy.cumsum(has_children) - 1, -1)
    nodes = reached.node[has_children]
    is_true = numpy.zeros(len(pool.keys), dtype=bool)
    is_true[reached.node[reached.node >= len(pool.first)] - len(pool.first)] = True
    option, choice, log_weight, group_weight = _options(
        pool, nodes, is_true, max_options, generator
    )
    taken, stopped, arrival = _paths(pool, reached, choice_of, option, choice)
    overlap, overlap_count = _overlaps(pool, ids, reached.start[has_children][choice], option)
    # Elsewhere the text has the LM's tokens.
    is_plain = numpy.ones(span[1] - span[0], dtype=bool)
    is_plain[reached.start - span[0]] = False
    plain = span[0] + numpy.flatnonzero(is_plain)
    begin = numpy.concatenate([reached.start, plain])
    end = numpy.concatenate([reached.end, plain + 1])
    order = numpy.lexsort((end, begin))
    number = numpy.argsort(order)
    return Stretch(
        *span,
        state=reached.start[has_children] - 1,
        is_phrase=nodes >= len(pool.first),
        arrival=arrival,
        total=pool.totals[nodes],
        option=option,
        choice=choice,
        log_weight=log_weight,
        group_weight=group_weight,
        evidence=Evidence(pool.count[option], overlap, overlap_count),
        unit_begin=begin[order],
        unit_end=end[order],
        taken=(number[taken[:, 0]], taken[:, 1]),
        stopped=(number[stopped[:, 0]], stopped[:, 1]),
    )


def _reached(pool: CandidateTree, truth: Windows, end: int) -> _Reached:
    root = pool.roots(truth.ids[:, 0])
    truth, root = truth.take(root >= 0), root[root >= 0]
    phrase = pool.phrases(truth.keys)
    index = truth.start[:, None] + numpy.arange(phrase.shape[1])
    row, column = numpy.nonzero((phrase >= 0) & (index < end))
    rows = numpy.concatenate([numpy.arange(len(root)), row])
    columns = numpy.concatenate([numpy.zeros(len(root), numpy.int64), column])
    nodes = numpy.concatenate([root, len(pool.first) + phrase[row, column]])
    order = numpy.lexsort((columns, rows))
    start = truth.start[rows[order]]
    return _Reached(start, nodes[order], start + columns[order] + 1)


def _options(
    pool: CandidateTree,
    nodes: Ints,
    is_true: Flags,
    max_options: int | None,
    generator: numpy.random.Generator,
) -> tuple[Ints, Ints, Floats, Floats]:
    """Return the options of the choices at nodes; the same ones wherever a node comes again.

    With the number of the choice of each, and the two weights of `Stretch`.
    """
    drawn: dict[int, tuple[Ints, Floats]] = {}
    for node in numpy.unique(nodes).tolist():
        children = pool.children[pool.edges[node] : pool.edges[node + 1]]
        weight = numpy.zeros((2, len(children)))
        others = children[~is_true[children]]
        if max_options is not None and len(others) > 2 * max_options:
            # What documents have often scores high: a sample of all would often miss it.
            others = others[numpy.argsort(-pool.count[others], kind="stable")]
            kept = numpy.concatenate([children[is_true[children]], others[:max_options]])
            rest = others[max_options:]
            some = generator.choice(rest, max_options, replace=False)
            children = numpy.concatenate([kept, some])
            weight = numpy.zeros((2, len(children)))
            second = pool.ids[some, 1]
            alike = _counts(second, pool.ids[rest, 1]) / _counts(second, second)
            weight[:, len(kept) :] = numpy.log(
                [numpy.full(max_options, len(rest) / max_options), alike]
            )
        drawn[node] = children, weight
    each = [drawn[node] for node in nodes.tolist()]
    sizes = [len(children) for children, _ in each]
    option = numpy.concatenate([numpy.empty(0, numpy.int64), *(some for some, _ in each)])
    weights = numpy.concatenate([numpy.empty((2, 0)), *(weight for _, weight in each)], axis=1)
    return option, numpy.repeat(numpy.arange(len(nodes)), sizes), *weights


def _counts(values: Ints, among: Ints) -> Ints:
    """Count each of some values among others, where all of them are."""
    known, counts = numpy.unique(among, return_counts=True)
    found: Ints = counts[numpy.searchsorted(known, values)]
    return found


def _overlaps(
    pool: CandidateTree, ids: NDArray[numpy.int32], start: Ints, option: Ints
) -> tuple[Ints, Ints]:
    """Count the tokens before places that are, together with an option, a phrase of the pool.

    Returns also how often that phrase stands in the candidates' texts.
    """
    overlap = numpy.zeros(len(option), dtype=numpy.int64)
    count = numpy.ones(len(option), dtype=numpy.int64)
    width = pool.ids.shape[1]
    for size in range(1, MAX_OVERLAP + 1):
        fits = numpy.flatnonzero((pool.length[option] + size <= width) & (start >= size))
        before = ids[start[fits][:, None] - numpy.arange(size, 0, -1)].astype(numpy.int64)
        joined = numpy.concatenate([before, pool.ids[option[fits], : width - size]], axis=1)
        keys = hashes(joined)[numpy.arange(len(fits)), pool.length[option[fits]] + size - 1]
        phrase = pool.phrases(keys)
        overlap[fits[phrase >= 0]] = size
        count[fits[phrase >= 0]] = pool.count[phrase[phrase >= 0]]
    return overlap, count


def _paths(
    pool: CandidateTree, reached: _Reached, choice_of: Ints, option: Ints, choice: Ints
) -> tuple[Ints, Ints, Ints]:
    """Return (unit, option) for all that leads to each reached node, (unit, choice) for stops.

    And, for each choice, the option that led to its node.
    """
    places = {pair: i for i, pair in enumerate(zip(choice.tolist(), option.tolist(), strict=True))}
    taken: list[tuple[int, int]] = []
    path: list[int] = []
    last: list[int] = []
    for unit, node in enumerate(reached.node.tolist()):
        if node < len(pool.first):
            path = []
        else:
            # A phrase hangs under the node that the text reached before it.
            path = [*path, places[int(choice_of[unit - 1]), node - len(pool.first)]]
        taken += [(unit, at) for at in path]
        last.append(path[-1] if path else -1)
    units = numpy.flatnonzero(choice_of >= 0)
    stopped = numpy.stack([units, choice_of[units]], axis=1)
    arrival = numpy.array(last, dtype=numpy.int64)[units]
    return numpy.array(taken, dtype=numpy.int64).reshape(-1, 2), stopped, arrival


def find(known: Ints, wanted: Ints) -> tuple[Ints, Flags]:
    """Return where wanted numbers are among sorted ones, and which of them are there."""
    if not len(known):
        return numpy.zeros_like(wanted), numpy.zeros(wanted.shape, dtype=bool)
    index = numpy.searchsorted(known, wanted).clip(max=len(known) - 1)
    return index, known[index] == wanted
