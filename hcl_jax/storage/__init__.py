# SPDX-License-Identifier: Apache-2.0
"""Prepared data sets and text files on disk, read without TensorFlow."""
