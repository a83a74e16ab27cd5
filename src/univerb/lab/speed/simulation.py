"""What drafts would be worth on a machine where rows of a pass are cheaper: a simulation.

Texts, passes and rows are real; only the time of a pass is assumed. A pass over one row costs 1.
"""

from collections.abc import Iterable

from univerb.engines.row_costs import MAX_ROWS, RowCosts


def free_rows(width: int) -> RowCosts:
    """Return the costs of passes where `width` rows cost as much as one."""
    return RowCosts({1: 1.0, width: 1.0, MAX_ROWS: MAX_ROWS / width})


def simulate(pass_rows: Iterable[int], costs: RowCosts) -> float:
    """Return what passes over these numbers of rows cost."""
    return sum(map(costs, pass_rows))


def speed_up(tokens: int, pass_rows: Iterable[int], costs: RowCosts) -> float:
    """Return how many times faster than plain decoding a text was written, the prompt left out.

    Plain decoding has one row a pass; the prompt's own pass gives the first token.
    """
    return (tokens - 1) / simulate(pass_rows, costs)
