r"""What a layer is trained on. All are losses: minimising them ascends what the paper maximises.

`joma.theory.flow` and the paper speak of the signal $g$ instead, which points uphill:
$g_{h_k}[i]$ is minus the gradient of sample $i$'s loss with respect to $h_k[i]$.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor


def cross_entropy(
    h: Float[Tensor, "*samples hidden"],
    labels: Int[Tensor, "*samples"],
    shares: Float[Tensor, "*samples"] | None = None,
) -> Float[Tensor, ""]:
    """Cross-entropy put directly on the nodes, one node per class (Section 2), or on logits.

    Args:
        h: Node outputs, or the logits of a read-out.
        labels: The class of each sample.
        shares: Probability of each sample; equal unless given.
    """
    each = F.cross_entropy(h.flatten(0, -2), labels.flatten(), reduction="none")
    return each.mean() if shares is None else shares.flatten() @ each


def node_objectives(
    h: Float[Tensor, "samples hidden"],
    g: Float[Tensor, "samples hidden"],
    shares: Float[Tensor, " samples"] | None = None,
) -> Float[Tensor, " hidden"]:
    r"""$\mathbb E[g_{h_k} h_k]$ of each node, which Eqn. 9 (Appendix A.1) sums and maximises.

    Node k's weights appear in its own term alone. The logits `z` appear in all of them, so only
    with frozen attention do the nodes train apart.
    """
    return (g * h).mean(0) if shares is None else shares @ (g * h)


def stationary(
    h: Float[Tensor, "samples hidden"],
    g: Float[Tensor, "samples hidden"],
    shares: Float[Tensor, " samples"] | None = None,
) -> Float[Tensor, ""]:
    r"""Minus Eqn. 9, $-\mathbb E[\sum_k g_{h_k} h_k]$: training under Assumption 1.

    Its gradient flow is Eqn. 2 with that `g`. Keep the same `g` for all of training; `signal`
    gives the one that a loss sends back now.
    """
    return -node_objectives(h, g.detach(), shares).sum()


def signal(
    loss: Float[Tensor, ""],
    h: Float[Tensor, "samples hidden"],
    shares: Float[Tensor, " samples"] | None = None,
) -> Float[Tensor, "samples hidden"]:
    r"""$g_{h_k}[i]$, the signal that `loss` sends back to node outputs `h` from which it was made.

    The loss must be a mean over samples, or weighted by `shares`; the weight is taken out again,
    and a sample of weight 0 has no signal (`nan`).
    """
    (slope,) = torch.autograd.grad(loss, h, retain_graph=True)
    return -slope * len(h) if shares is None else -slope / shares[:, None]
