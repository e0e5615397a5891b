# SPDX-License-Identifier: Apache-2.0
"""Is the room of images: data, SimCLR and MoCo, evaluation."""

from hcl_jax.images.data import Images
from hcl_jax.images.data import load
