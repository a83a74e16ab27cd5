"""What docs say of texts in context and of answers is what the committed results have."""

import json

from shown import ROOT

RESULTS = ROOT / "docs" / "results" / "answers"


def read(name: str) -> dict:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def page(name: str) -> str:
    return " ".join((ROOT / "docs" / name).read_text(encoding="utf-8").split())


def test_what_the_judge_of_pairs_said():
    judged, figures = read("pairs/judged.json"), read("pairs/pairs.json")["figures"]["all"]
    won, even, lost = judged["item_avg"]["counts"].values()
    margin = judged["margin"]
    for name in ("decisions/0040-context.md", "results/answers/README.md"):
        text = page(name)
        assert f"{won} pairs" in text and f"lost {lost}" in text, name
        low, high = f"{margin['low']:+.2f}", f"{margin['high']:+.2f}"
        assert f"{margin['value']:+.2f} (90 % interval {low} to {high})" in text
        assert f"{figures['in phrases']:.0%}".replace("%", " %") in text
        assert f"{figures['of 3 words or more']:.0%}".replace("%", " %") in text
    assert won + even + lost == judged["pairs"] == 60


def test_what_context_does_to_phrases():
    figures = read("without-context/pairs.json")["figures"]["all"]
    shares = [f"{figures[name]:.0%}"[:-1] + " %" for name in ("in phrases", "of 3 words or more")]
    assert "without context, on 30 of the prompts, {} and {}".format(*shares) in page(
        "decisions/0040-context.md"
    )
    assert shares[0] in page("results/answers/README.md")
