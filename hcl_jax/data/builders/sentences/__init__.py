# SPDX-License-Identifier: Apache-2.0
"""sentences: ordered corpora of sentences from plain text."""
