# SPDX-License-Identifier: Apache-2.0
"""A room of points on a circle, which the package knows nothing of."""
