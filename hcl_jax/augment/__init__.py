# SPDX-License-Identifier: Apache-2.0
"""SimCLR's augmentations on the device: pure functions of (key, image).

Operations take one planar image, ``[3, height, width]`` with values in [0, 1],
and explicit parameters. (:func:`crop` takes ``[height, width, 3]`` and returns
a planar image.) ``sample_*`` draw the parameters. :class:`Augmentation` draws
and applies all of them to a batch, inside the caller's compiled step.
"""

from hcl_jax.augment._color import adjust_brightness
from hcl_jax.augment._color import adjust_contrast
from hcl_jax.augment._color import adjust_hue
from hcl_jax.augment._color import adjust_saturation
from hcl_jax.augment._color import jitter_color
from hcl_jax.augment._color import to_grayscale
from hcl_jax.augment._pipeline import Augmentation
from hcl_jax.augment._pipeline import normalize
from hcl_jax.augment._resample import crop
from hcl_jax.augment._resample import gaussian_blur
from hcl_jax.augment._sampling import ORDERS
from hcl_jax.augment._sampling import sample_crop
from hcl_jax.augment._sampling import sample_jitter

__all__ = [
    'ORDERS',
    'Augmentation',
    'adjust_brightness',
    'adjust_contrast',
    'adjust_hue',
    'adjust_saturation',
    'crop',
    'gaussian_blur',
    'jitter_color',
    'normalize',
    'sample_crop',
    'sample_jitter',
    'to_grayscale',
]
