# SPDX-License-Identifier: Apache-2.0
"""tfds builders for what its catalogue lacks."""
