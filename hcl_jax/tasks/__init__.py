# SPDX-License-Identifier: Apache-2.0
"""Tasks: where a model meets a loss."""
