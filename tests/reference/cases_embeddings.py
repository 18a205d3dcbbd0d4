"""Almost orthogonal embeddings."""

from joma.theory import embeddings


def dimensions(M, eps):
    return {
        "d8": embeddings.sufficient_dimension(M, eps),
        "d4": embeddings.union_bound_dimension(M, eps),
    }


ADAPTERS = {"jl.d": dimensions}
