# SPDX-License-Identifier: Apache-2.0
"""Supervised contrastive loss: all examples of a class are positives."""

import functools

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from hcl_jax import _checks
from hcl_jax import _devices
from hcl_jax.losses import _blockwise
from hcl_jax.losses import _mesh
from hcl_jax.losses import _nce
from hcl_jax.losses import _partners
from hcl_jax.losses import _positives
from hcl_jax.losses import _simclr


def supcon_loss(
    z1: jax.Array,
    z2: jax.Array,
    labels: jax.Array,
    *,
    temperature: ArrayLike = 0.1,
    beta: ArrayLike | None = None,
    effective_negatives: ArrayLike | None = None,
    axis_name: str | None = None,
    mesh: _mesh.Mesh | None = None,
    block_size: int | None = None,
    stop_gradient_weights: bool = False,
) -> jax.Array:
  r"""Computes the supervised contrastive loss, with plain or hard negatives.

  Each of the 2 batch embeddings is an anchor. Its positives P are the others of
  its label, its negatives the N of other labels. With logits s = cosine / t,

  .. math::
    \ell_i = \log\Bigl(\sum_{p \in P} e^{s_{ip}} + N_{g,i}\Bigr)
             - \frac{1}{|P|} \sum_{p \in P} s_{ip}, \qquad
    N_{g,i} = N \frac{\sum_j e^{(1+\beta) s_{ij}}}{\sum_j e^{\beta s_{ij}}}.

  ``beta=0`` is SupCon [1]: the logarithm is of the sum over all other
  embeddings. There is no ``base_temperature``: the loss is not rescaled. If all
  labels differ, this is :func:`simclr_loss` with ``tau_plus=0``. An anchor
  without negatives (if all labels are equal) has the first sum only.

  H-SCL [2] tilts the negatives of other labels too, but its released code has
  one positive, the other view: that is :func:`simclr_loss` with ``labels``,
  ``tau_plus=0`` and ``stop_gradient_weights``.

  Args:
    z1: embeddings of the first views, ``[batch, dim]``; need not be unit
      vectors.
    z2: embeddings of the second views; row i belongs to row i of z1.
    labels: integers ``[batch]``.
    temperature: t > 0. May be traced and learned.
    beta: concentration of the tilt on logits, >= 0: a scalar, one for each
      pair, ``[batch]``, or one for each anchor, ``[2 batch]``, first views
      first. May be traced. None: 0, which is SupCon.
    effective_negatives: instead of beta, the share of an anchor's negatives
      that shall count; see :func:`simclr_loss`.
    axis_name: mapped axis over which the batch is split; positives and
      negatives come from the global batch. See :func:`simclr_loss` on
      gradients.
    mesh: mesh whose devices share the rows under ``jit``; see
      :func:`simclr_loss`.
    block_size: rows of a similarity tile; see :func:`simclr_loss`. Tiles with
      positives are visited a second time: of C equal classes, a share of 1 / C
      and those at their borders. Reverse-mode derivatives of the gradient need
      the dense form, ``block_size >= 2 batch``.
    stop_gradient_weights: treat the tilting weights as constants.

  Returns:
    One loss per pair, ``[batch]``: the mean over its two anchors.

  Example:
    >>> import jax.numpy as jnp
    >>> z1 = jnp.array([[1.0, 0.0], [0.0, 1.0], [0.8, 0.6]])
    >>> z2 = jnp.array([[0.8, 0.6], [-0.6, 0.8], [1.0, 0.0]])
    >>> labels = jnp.array([0, 1, 0])
    >>> for beta in (0.0, 1.0):
    ...   loss = supcon_loss(z1, z2, labels, temperature=0.5, beta=beta)
    ...   print(f'{loss.mean():.4f}')
    1.0819
    1.1511

  References:
    [1] Khosla et al., Supervised Contrastive Learning, 2020.
    [2] Jiang et al., Supervised Contrastive Learning with Hard Negative
      Samples, 2022.
    [3] Robinson et al., Contrastive Learning with Hard Negative Samples, 2021.
  """
  z1, z2 = _checks.embeddings(z1=z1, z2=z2)
  batch = z1.shape[0]
  if beta is None and effective_negatives is None:
    beta = 0.0
  hyperparameters = _nce.read_hyperparameters(
      z1,
      (batch,),
      (2 * batch,),
      temperature=temperature,
      beta=beta,
      tau_plus=0.0,
      positive_weight=1.0,
      effective_negatives=effective_negatives,
      floor='none',
      block_size=block_size,
  )
  block = _blockwise.choose_block(2 * batch, 2 * batch, block_size)
  split = _mesh.choose(mesh, axis_name, z1, tiled=block is not None)
  _checks.enough_pairs(batch * _devices.axis_size(axis_name))
  return _mesh.call(
      _supcon_loss,
      split,
      {
          'z1': z1,
          'z2': z2,
          'labels': _checks.labels('labels', labels, (batch,)),
          'hyperparameters': _partners.by_pairs(
              hyperparameters, split, batch
          ),
      },
      axis_name=axis_name,
      block_size=block_size,
      stop_gradient_weights=stop_gradient_weights,
  )


@functools.partial(
    jax.jit,
    static_argnames=('axis_name', 'block_size', 'stop_gradient_weights'),
)
def _supcon_loss(
    *, z1, z2, labels, hyperparameters, axis_name, block_size,
    stop_gradient_weights,
):  # fmt: skip
  positives, negatives = _simclr.two_views(
      z1,
      z2,
      labels,
      hyperparameters,
      grouped=True,
      axis_name=axis_name,
      block_size=block_size,
      stop_gradient_weights=stop_gradient_weights,
  )
  losses = _positives.nce(positives, negatives, hyperparameters, floor='none')
  return jnp.mean(losses.reshape(2, -1), axis=0)
