"""The paper's own rows obey its rule: Diversity is the product over means of Rep-n."""

import pytest

from univerb.lab.metrics.repetition import mean_repetition

# Rep-2, Rep-3, Rep-4 and Diversity in percent: greedy, then nucleus.
WIKITEXT = {
    "transformer": [(41.96, 36.82, 33.74, 24.30), (5.40, 1.44, 0.51, 92.76)],
    "retro": [(43.78, 38.58, 35.35, 22.33), (5.83, 1.91, 0.83, 91.61)],
    "knn-lm": [(43.79, 38.76, 35.69, 22.13), (3.33, 0.69, 0.21, 95.8)],
    "cog": [(34.77, 30.67, 28.35, 32.41), (5.43, 1.53, 0.67, 92.50)],
    "mwt": [(33.78, 26.72, 22.76, 37.48), (4.18, 0.90, 0.29, 94.68)],
    "ours": [(27.77, 20.80, 17.08, 47.44), (4.59, 1.03, 0.28, 94.16)],
}
LAW = {
    "transformer": [(13.36, 9.69, 7.84, 72.12), (4.05, 1.62, 0.80, 93.64)],
    "transformer, tuned": [(9.74, 6.45, 5.00, 80.21), (4.36, 1.73, 0.87, 93.17)],
    "retro": [(13.19, 9.34, 7.66, 72.68), (3.30, 1.18, 0.55, 95.03)],
    "cog": [(9.29, 5.68, 4.24, 81.93), (4.57, 1.58, 0.72, 93.25)],
    "mwt": [(11.59, 7.34, 5.46, 77.45), (3.15, 1.01, 0.39, 95.49)],
    "ours": [(9.26, 5.21, 3.52, 82.99), (3.63, 1.17, 0.48, 94.78)],
}
ROWS = [row for table in (WIKITEXT, LAW) for rows in table.values() for row in rows]


@pytest.mark.parametrize("row", ROWS)
def test_diversity_of_a_row(row):
    *rep, diversity = row
    found = mean_repetition([dict(zip((2, 3, 4), rep, strict=True))])
    assert 100 * found.diversity == pytest.approx(diversity, abs=0.03)
