# SPDX-License-Identifier: Apache-2.0
"""The directory and the process of a run; knows no model."""
