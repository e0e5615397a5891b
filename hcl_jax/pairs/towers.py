# SPDX-License-Identifier: Apache-2.0
"""Makes the towers that a configuration names."""

from collections.abc import Mapping

from flax import linen as nn
import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from hcl_jax import models
from hcl_jax.models import text_encoder
from hcl_jax.pairs import config as pair_config
from hcl_jax.pairs import readers as readers_lib
from hcl_jax.pairs import task as two_towers
from hcl_jax.training import own_code

_CHECKED = 3  # rows that an encoder of a user's own is checked with
# Encoders of tokens, by the name that a configuration has for them.
_OF_TOKENS = {
    'ngrams': 'bag',
    'words': 'bag',
    'gru': 'gru',
    'transformer': 'transformer',
}


class ImageTower(nn.Module):
  """Embeds images by an encoder that treats each by itself.

  Attributes:
    encoder: as ``models.create`` makes it.
  """

  encoder: nn.Module

  def __call__(self, rows: jax.Array, *, train: bool) -> jax.Array:
    """Maps images, uint8 ``[n, height, width, 3]``, to ``[n, dim]``."""
    images = rows.astype(jnp.float32) / 127.5 - 1
    return self.encoder(images, train=train)[1]


def create(
    config: ml_collections.ConfigDict,
    readers: Mapping[str, readers_lib.Reader],
) -> two_towers.Towers:
  """Makes the towers of a configuration, for what readers make.

  Raises:
    ValueError: an encoder cannot be made.
  """
  query, document = (
      _tower(config, side, readers[side]) for side in two_towers.SIDES
  )
  loss = config.loss
  return two_towers.Towers(
      query=query,
      document=None if config.model.shared else document,
      temperature=loss.temperature if loss.learned_temperature else None,
  )


def check(
    config: ml_collections.ConfigDict,
    readers: Mapping[str, readers_lib.Reader],
    axis_name: str | None,
) -> None:
  """Raises a ValueError unless encoders of a user's own work."""
  for side in two_towers.SIDES:
    if ':' in pair_config.encoder_of(config, side):
      own_code.check(
          _tower(config, side, readers[side]),
          (np.repeat(readers[side].example(), _CHECKED, axis=0),),
          axis_name=axis_name,
      )


def tables(
    config: ml_collections.ConfigDict,
    readers: Mapping[str, readers_lib.Reader],
) -> tuple[two_towers.Table, ...]:
  """Returns the table of tokens of each tower that has one."""
  entries = {'query': ('query',), 'document': ('document', 'negative')}
  if config.model.shared:
    entries = {'query': ('query', 'document', 'negative')}
  return tuple(
      two_towers.Table(side, readers[side].tokenizer.num_tokens, x)
      for side, x in entries.items()
      if pair_config.encoder_of(config, side) in _OF_TOKENS
  )


def _tower(config, side, reader) -> nn.Module:
  """Makes one encoder, ``(rows, train) -> [n, dim]``."""
  model, name = config.model, pair_config.encoder_of(config, side)
  num_tokens = reader.tokenizer.num_tokens if reader.tokenizer else 0
  if ':' in name:
    return own_code.create(
        config,
        lambda rows: {'embeddings': rows.shape[0]},
        side=side,
        num_tokens=num_tokens,
    )
  if name == 'adapter':
    return text_encoder.Adapter(model.width, model.dim)
  if name in _OF_TOKENS:
    return text_encoder.create(
        _OF_TOKENS[name],
        num_tokens=num_tokens,
        dim=model.dim,
        width=model.width,
        token_dim=model.token_dim,
        depth=model.layers,
        heads=model.heads,
        dtype=model.dtype,
    )
  return ImageTower(
      models.create(
          name,
          head='moco',
          head_width=model.width,
          embedding_dim=model.dim,
          norm='group',
          dtype=model.dtype,
      )
  )
