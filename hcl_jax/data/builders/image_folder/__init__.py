# SPDX-License-Identifier: Apache-2.0
"""image_folder: folders of image files, of any sizes and formats."""
