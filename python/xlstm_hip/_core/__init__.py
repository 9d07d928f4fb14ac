# SPDX-License-Identifier: Apache-2.0
"""The base of every part of the package: op library, checks, devices, environment variables, logs, plans, files."""
