# SPDX-License-Identifier: Apache-2.0
"""Values and gradients of public contrastive losses, against 60 digits."""
