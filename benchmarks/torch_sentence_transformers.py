# SPDX-License-Identifier: Apache-2.0
"""Trains two towers of bags of tokens by sentence-transformers, as a peer."""

from collections.abc import Mapping
import tempfile
import time
from typing import NamedTuple

import datasets
import numpy as np
import sentence_transformers
from sentence_transformers import losses
import torch
from torch import nn

from benchmarks import torch_pairs


class Trained(NamedTuple):
  """Holds embeddings by side, and the seconds that training took."""

  embeddings: dict[str, np.ndarray]
  seconds: float
  cpu_seconds: float


class _Towers(sentence_transformers.base.modules.InputModule):
  """Embeds texts by the tower of the side that they are known to be of.

  Tokens are looked up and not computed.
  """

  config_keys = ()

  def __init__(self, rows, **sizes):
    super().__init__()
    self._rows = rows
    self.towers = nn.ModuleDict(
        {side: torch_pairs.Bag(**sizes) for side in rows}
    )

  def preprocess(self, inputs, prompt=None, **unused):
    del prompt
    side = next(x for x, known in self._rows.items() if inputs[0] in known)
    rows = np.stack([self._rows[side][text] for text in inputs])
    return {'input_ids': torch.from_numpy(rows), 'side': side}

  def forward(self, features, **unused):
    rows = features['input_ids'].numpy()
    tower = self.towers[features['side']]
    features['sentence_embedding'] = tower(*torch_pairs.flat(rows))
    return features

  def save(self, *unused, **also_unused):
    pass


def train(
    texts: Mapping[str, list[str]],
    rows: Mapping[str, np.ndarray],
    pairs: Mapping[str, np.ndarray],
    *,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    temperature: float,
    hardness: float,
    seed: int,
    **sizes: int,
) -> Trained:
  """Trains by MultipleNegativesRankingLoss in both directions.

  Args:
    texts: all queries and documents, by side.
    rows: their tokens, int32 ``[n, length]``.
    pairs: rows of the queries and documents to train on.
    epochs: number of epochs.
    batch_size: of pairs.
    learning_rate: of Adam, falling in a cosine.
    temperature: one over its ``scale``.
    hardness: its ``hardness_strength``, on negatives of the batch.
    seed: of everything.
    **sizes: of a tower.
  """
  torch.manual_seed(seed)
  known = {
      side: dict(zip(texts[side], rows[side], strict=True)) for side in texts
  }
  model = sentence_transformers.SentenceTransformer(
      modules=[_Towers(known, **sizes)], device='cpu'
  )
  data = datasets.Dataset.from_dict({
      side: [texts[side][row] for row in pairs[side].tolist()]
      for side in ('query', 'document')
  })
  loss = losses.MultipleNegativesRankingLoss(
      model,
      scale=1 / temperature,
      directions=('query_to_doc', 'doc_to_query'),
      partition_mode='per_direction',
      hardness_mode='in_batch_negatives' if hardness else None,
      hardness_strength=hardness,
  )
  with tempfile.TemporaryDirectory() as folder:
    trainer = sentence_transformers.SentenceTransformerTrainer(
        model=model,
        args=sentence_transformers.SentenceTransformerTrainingArguments(
            output_dir=folder,
            num_train_epochs=epochs,
            per_device_train_batch_size=batch_size,
            learning_rate=learning_rate,
            lr_scheduler_type='cosine',
            dataloader_drop_last=True,
            max_grad_norm=0.0,
            save_strategy='no',
            report_to='none',
            logging_steps=1000,
            disable_tqdm=True,
            seed=seed,
            use_cpu=True,
        ),
        train_dataset=data,
        loss=loss,
    )
    start, cpu = time.monotonic(), time.process_time()
    trainer.train()
    seconds = time.monotonic() - start, time.process_time() - cpu
  return Trained(
      {
          side: model.encode(list(x), batch_size=1024, show_progress_bar=False)
          for side, x in texts.items()
      },
      *seconds,
  )
