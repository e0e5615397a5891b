# SPDX-License-Identifier: Apache-2.0
"""Times the loss and the train step on the machine of a user: a command."""
