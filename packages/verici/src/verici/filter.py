"""Train the message filter: does a message look like one that named what the fix changed?

A perceptron with two hidden layers reads the message's characters as codes scaled to 0–1 (SANER 2022, section IV).
It learns from past messages of the same repository. Sizes and length are ours: the paper does not state them.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np

from verici.store import Weights, encode

#: Characters of a message that are read; hidden neurons.
LENGTH, HIDDEN = 96, (12, 6)
#: Past messages of each kind below which no filter is trained.
FEWEST = 5


def train(messages: Sequence[str], hits: Sequence[bool]) -> Weights | None:
    """Return a filter trained on past messages, or None if there are too few of a kind."""
    good = sum(hits)
    if good < FEWEST or len(hits) - good < FEWEST:
        return None
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPClassifier

    network = MLPClassifier(HIDDEN, solver="lbfgs", max_iter=300, random_state=0, alpha=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        network.fit(np.array([encode(message, LENGTH) for message in messages]), np.array(hits, dtype=int))
    layers = tuple(
        (tuple(tuple(round(float(one), 4) for one in column) for column in matrix.T), tuple(offsets.round(4).tolist()))
        for matrix, offsets in zip(network.coefs_, network.intercepts_, strict=True)
    )
    return Weights(layers, LENGTH, good, len(hits) - good)
