# SPDX-License-Identifier: Apache-2.0
"""digit_scenes: the data set that needs no download."""
