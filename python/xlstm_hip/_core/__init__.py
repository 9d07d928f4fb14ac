# SPDX-License-Identifier: Apache-2.0
"""What every part of the package stands on: op library, checks, devices, environment variables, logs, plans, files."""
