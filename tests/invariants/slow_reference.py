"""Decoding written a second time, as plainly as possible: no cache, one full pass per question."""

import re

import torch

from univerb.config import GenerationConfig
from univerb.engines.torch.sampling import make_sampler


def bare_logits(lm, ids):
    with torch.no_grad():
        return lm.model(torch.tensor([ids])).logits[0, -1].float()


def atomic(lm, prompt, vocabulary, bias, budget, change=None):
    """Greedy `atomic`: units chosen over V + P, each fed as one row."""
    units, produced, trace = list(prompt), 0, []
    while produced < budget:
        if change:
            change(vocabulary, produced)
        with torch.no_grad():
            logits = lm.forward(torch.tensor([units]), vocabulary)[0, -1].float()
        logits[lm.static_size :] += bias
        for index in range(vocabulary.size):
            if len(vocabulary.phrase(lm.static_size + index)) > budget - produced:
                logits[lm.static_size + index] = float("-inf")
        unit = int(logits.argmax())
        ids = vocabulary.phrase(unit).ids if unit >= lm.static_size else (unit,)
        units.append(unit)
        trace.append(tuple(ids))
        produced += len(ids)
    return trace


def unfold(lm, prompt, vocabulary, bias, tolerance, budget):
    """Greedy `unfold`: phrases chosen over V + P, kept while the LM accepts their tokens."""
    tokens, trace = list(prompt), []
    while (left := budget - (len(tokens) - len(prompt))) > 0:
        with torch.no_grad():
            scores = lm.forward(torch.tensor([tokens]), vocabulary)[0, -1].float()
        logits = bare_logits(lm, tokens)
        share = torch.softmax(logits, -1) / torch.softmax(logits, -1).max()
        best, chosen = float(logits.max()), (int(logits.argmax()),)
        for index in range(vocabulary.size):
            phrase = vocabulary.phrase(lm.static_size + index)
            score = float(scores[lm.static_size + index]) + bias
            accepted = float(share[phrase.ids[0]]) >= 1 - tolerance
            if accepted and len(phrase) <= left and score > best:
                best, chosen = score, phrase.ids
        kept = [chosen[0]]
        own = None
        for token in chosen[1:]:
            logits = bare_logits(lm, tokens + kept)
            share = torch.softmax(logits, -1) / torch.softmax(logits, -1).max()
            if float(share[token]) < 1 - tolerance:
                own = int(logits.argmax())
                break
            kept.append(token)
        tokens += kept
        size = len(kept) if own is None else named(lm, chosen, kept, own)
        trace += [tuple(kept[:size])] if size else []
        trace += [(token,) for token in kept[size:]]
        if own is not None and len(tokens) - len(prompt) < budget:
            tokens.append(own)
            trace.append((own,))
    return trace


def named(lm, chosen, kept, own):
    """How many tokens of a phrase that is cut end whole in the phrase and in what is written."""
    decode = lm.tokenizer.decode
    for size in range(len(kept), 1, -1):
        part = decode(kept[:size])
        texts = [decode(chosen), decode([*kept, own])]
        seams = [f"{part}|{text.removeprefix(part)}" for text in texts if text.startswith(part)]
        inside = r"\s\||\w\|\w|\d[.,:/–-]\|\d|\d\|[.,:/–-]\d"
        if len(seams) == 2 and not any(re.search(inside, seam) for seam in seams):
            return size
    return 0


def plain(lm, prompt, budget, **sampling):
    """The bare LM, one full pass per token."""
    tokens = list(prompt)
    sampler = make_sampler(GenerationConfig(**sampling))
    for _ in range(budget):
        logits = bare_logits(lm, tokens).numpy()
        tokens.append(sampler.pick(sampler.filtered(logits, tokens)))
    return tokens[len(prompt) :]


class Enumeration:
    """All texts of `budget` tokens with their probabilities under sampling."""

    def __init__(self, lm, prompt, vocabulary, budget, **options):
        self.lm, self.prompt, self.vocabulary, self.budget = lm, prompt, vocabulary, budget
        self.config = GenerationConfig(**options)
        self.sampler = make_sampler(self.config)
        self.lenience = 1 if self.config.mode == "verify" else 1 - self.config.tolerance
        self.known = {}

    def texts(self):
        return (
            self.atomic(tuple(self.prompt), ()) if self.config.mode == "atomic" else self.unfold(())
        )

    def shares(self, logits, seen):
        return torch.softmax(torch.from_numpy(self.sampler.filtered(logits.numpy(), seen)), -1)

    def own(self, written):
        text = [*self.prompt, *written]
        return self.shares(bare_logits(self.lm, text), text)

    def ids(self, unit):
        return self.vocabulary.phrase(unit).ids if unit >= self.lm.static_size else (unit,)

    def choices(self, units, left, may_begin):
        """Every unit that may follow, with its probability over V + P."""
        with torch.no_grad():
            scores = self.lm.forward(torch.tensor([units]), self.vocabulary)[0, -1].float()
        for unit in range(self.lm.static_size, len(scores)):
            scores[unit] += self.config.phrase_bias
            if len(self.ids(unit)) > left or not may_begin(self.ids(unit)[0]):
                scores[unit] = float("-inf")
        return [(p, i) for i, p in enumerate(self.shares(scores, units).tolist()) if p]

    def atomic(self, units, written):
        if len(written) == self.budget:
            return {written: 1.0}
        choices = self.choices(units, self.budget - len(written), lambda token: True)
        return mixed((p, self.atomic((*units, u), (*written, *self.ids(u)))) for p, u in choices)

    def unfold(self, written):
        if len(written) == self.budget:
            return {written: 1.0}
        if written not in self.known:
            own, text = self.own(written), (*self.prompt, *written)
            choices = self.choices(
                text,
                self.budget - len(written),
                lambda t: self.lenience < 1 and own[t] >= self.lenience * own.max(),
            )
            self.known[written] = mixed((p, self.inside(written, self.ids(u))) for p, u in choices)
        return self.known[written]

    def inside(self, written, ids):
        """The rest of a phrase is accepted with probability p / lenience, token by token."""
        written, parts, reached = (*written, ids[0]), [], 1.0
        for token in ids[1:]:
            own = self.own(written)
            accepted = min(1.0, float(own[token]) / self.lenience) if self.lenience else 1.0
            for other in own.nonzero()[:, 0].tolist() if accepted < 1.0 else ():
                share = 0.0 if other == token else float(own[other] / (1 - own[token]))
                parts.append((reached * (1 - accepted) * share, self.unfold((*written, other))))
            reached *= accepted
            written = (*written, token)
        return mixed([*parts, (reached, self.unfold(written))])


def mixed(parts):
    """Add up distributions, each with its weight."""
    total = {}
    for weight, texts in parts:
        for text, p in texts.items():
            total[text] = total.get(text, 0.0) + weight * p
    return total
