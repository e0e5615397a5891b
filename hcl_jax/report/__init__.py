# SPDX-License-Identifier: Apache-2.0
"""Reports on runs and sweeps: figures, tables and an HTML page."""
