# SPDX-License-Identifier: Apache-2.0
"""Joins a linen image encoder and its views, as pure functions."""

from collections.abc import Callable
import dataclasses
from typing import Any

from flax import linen as nn
import jax


@dataclasses.dataclass(frozen=True)
class ImageEncoder:
  """Does what both image tasks do with a module.

  Attributes:
    module: images to (features, embeddings), with a ``train`` argument.
    augment: ``(keys [b], images [b, ...]) -> views``.
    normalize: the transform of images that are evaluated.
  """

  module: nn.Module
  augment: Callable[[jax.Array, jax.Array], jax.Array]
  normalize: Callable[[jax.Array], jax.Array]

  def init(self, key: jax.Array, images: jax.Array) -> tuple[Any, Any]:
    """Returns parameters, and the other collections: running statistics."""
    variables = dict(
        self.module.init(key, self.normalize(images), train=False)
    )
    return variables.pop('params'), variables

  def embed(self, params: Any, stats: Any, views: jax.Array):
    """Embeds one view, whose batch statistics are its own."""
    (_, z), updated = self.module.apply(
        {'params': params, **stats}, views, train=True, mutable=['batch_stats']
    )
    return z, {**stats, **updated}

  def evaluate(
      self,
      params: Any,
      stats: Any,
      images: jax.Array,
      keys: jax.Array | None = None,
  ) -> tuple[jax.Array, jax.Array]:
    """Returns features and embeddings in evaluation mode.

    Args:
      params: the parameters.
      stats: the running statistics.
      images: uint8 ``[b, height, width, 3]``.
      keys: one for each image, to augment it; None for the image as it is.

    Returns:
      The pooled output before the head and what the head makes of it, both
      ``[b, dim]``. What is not used is not computed in a compiled function.
    """
    if keys is None:
      views = self.normalize(images)
    else:
      views = self.augment(keys, images)
    return self.module.apply({'params': params, **stats}, views, train=False)


def across_devices(stats: Any, axis_name: str | None) -> Any:
  """Averages running statistics, which every device collects for itself."""
  if axis_name is None:
    return stats
  return jax.tree.map(lambda x: jax.lax.pmean(x, axis_name), stats)
