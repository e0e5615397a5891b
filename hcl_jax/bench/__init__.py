# SPDX-License-Identifier: Apache-2.0
"""How long the library takes here, and what memory it needs: a command."""
