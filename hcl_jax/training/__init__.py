# SPDX-License-Identifier: Apache-2.0
"""Training: state, step, loop, and what a run leaves in its directory."""
