"""Decoding written a second time, as plainly as possible: no cache, one full pass per question."""

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
        trace.append(tuple(kept))
        if own is not None and len(tokens) - len(prompt) < budget:
            tokens.append(own)
            trace.append((own,))
    return trace


def plain(lm, prompt, budget, **sampling):
    """The bare LM, one full pass per token."""
    tokens = list(prompt)
    sampler = make_sampler(GenerationConfig(**sampling))
    for _ in range(budget):
        logits = bare_logits(lm, tokens).numpy()
        tokens.append(sampler.pick(sampler.filtered(logits, tokens)))
    return tokens[len(prompt) :]
