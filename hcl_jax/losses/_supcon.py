# SPDX-License-Identifier: Apache-2.0
"""Supervised contrastive loss: all examples of a class are positives."""

import functools

import jax
from jax import lax
from jax.lax import stop_gradient
import jax.numpy as jnp
from jax.typing import ArrayLike

from hcl_jax import _checks
from hcl_jax import _devices
from hcl_jax import _vectors


def supcon_loss(
    z1: jax.Array,
    z2: jax.Array,
    labels: jax.Array,
    *,
    temperature: ArrayLike = 0.1,
    axis_name: str | None = None,
) -> jax.Array:
  r"""Computes the supervised contrastive loss over two views.

  For each of the 2 batch anchors, with P the other embeddings of its label,

  .. math::
    \ell_i = \log \sum_{a \ne i} e^{s_{ia}} - \frac{1}{|P|} \sum_{p \in P}
             s_{ip}.

  There is no ``base_temperature``: the loss is not rescaled. If all labels
  differ, this is NT-Xent.

  Args:
    z1: embeddings of the first views, ``[batch, dim]``; need not be unit
      vectors.
    z2: embeddings of the second views; row i belongs to row i of z1.
    labels: integers ``[batch]``.
    temperature: t > 0. May be traced and learned.
    axis_name: mapped axis over which the batch is split; positives and
      negatives come from the global batch. See :func:`simclr_loss` on
      gradients.

  Returns:
    One loss per pair, ``[batch]``: the mean over its two anchors.

  References:
    Khosla et al., Supervised Contrastive Learning, 2020.
  """
  z1, z2 = _checks.embeddings(z1=z1, z2=z2)
  _checks.temperature(temperature)
  batch = z1.shape[0]
  _checks.enough_pairs(batch * _devices.axis_size(axis_name))
  labels = _checks.labels('labels', labels, (batch,))
  scale = 1 / jnp.asarray(temperature, _vectors.compute_dtype(z1.dtype))
  return _supcon_loss(z1, z2, labels, scale, axis_name=axis_name)


@functools.partial(jax.jit, static_argnames='axis_name')
def _supcon_loss(z1, z2, labels, scale, *, axis_name):
  batch = z1.shape[0]
  rows = jnp.concatenate([_vectors.normalize(z1), _vectors.normalize(z2)])
  row_labels = jnp.concatenate([labels, labels])
  columns, column_labels, first = rows, row_labels, 0
  if axis_name is not None:
    columns = lax.all_gather(rows, axis_name, tiled=True)
    column_labels = lax.all_gather(row_labels, axis_name, tiled=True)
    first = lax.axis_index(axis_name) * 2 * batch
  cosines = _vectors.inner_products(rows, columns)
  others = (
      jnp.arange(2 * batch)[:, None] + first
      != jnp.arange(columns.shape[0])[None, :]
  )
  positives = others & (row_labels[:, None] == column_labels[None, :])
  # Subtract the row's peak before scaling, as in tilting.
  peak = stop_gradient(
      jnp.max(jnp.where(others, cosines, -jnp.inf), axis=1, keepdims=True)
  )
  logits = scale * (cosines - peak)
  total = jax.nn.logsumexp(logits, axis=1, where=others)
  losses = total - jnp.mean(logits, axis=1, where=positives)
  return jnp.mean(losses.reshape(2, batch), axis=0)
