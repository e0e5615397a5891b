# SPDX-License-Identifier: Apache-2.0
"""tu_graphs: collections of graphs in the text format of TU Dortmund."""
