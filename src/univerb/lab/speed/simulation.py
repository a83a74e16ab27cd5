"""What drafts would be worth on a machine where rows of a pass are cheaper: a simulation.

Texts, passes and rows are real; only the time of a pass is assumed. A pass over one row costs 1.
"""

from collections.abc import Sequence

MAX_ROWS = 64


def free_rows(width: int) -> tuple[float, ...]:
    """Return the costs of passes over 1, 2, ... rows where `width` of them cost as much as one."""
    return tuple(max(1.0, rows / width) for rows in range(1, MAX_ROWS + 1))


def simulate(pass_rows: Sequence[int], costs: Sequence[float]) -> float:
    """Return what passes over these numbers of rows cost; beyond the table it goes on linearly."""
    return sum(
        costs[rows - 1] if rows <= len(costs) else costs[-1] * rows / len(costs)
        for rows in pass_rows
    )


def speed_up(tokens: int, pass_rows: Sequence[int], costs: Sequence[float]) -> float:
    """Return how many times faster than plain decoding a text was written, the prompt left out.

    Plain decoding has one row a pass; the prompt's own pass gives the first token.
    """
    return simulate([1] * (tokens - 1), costs) / simulate(pass_rows, costs)
