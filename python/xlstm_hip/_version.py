# SPDX-License-Identifier: Apache-2.0
"""The version, in its one place: pyproject.toml, CMakeLists.txt and the package read this file."""

__version__ = "0.1.0"
