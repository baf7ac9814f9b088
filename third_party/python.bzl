"""py_library, py_binary and py_test for every BUILD file of this project.

The one place that knows where the Python rules come from: they are native up to Bazel 7. Bazel 8 and
later need `load("@rules_python//python:defs.bzl", ...)` here and the dependency in MODULE.bazel; no
BUILD file changes.
"""

def py_library(name, **kwargs):
    """A native py_library."""
    native.py_library(name = name, **kwargs)  # buildifier: disable=native-py

def py_binary(name, **kwargs):
    """A native py_binary that adds no __init__.py files, so ops/ and testing/ stay namespaces.

    Args:
      name: the target's name.
      **kwargs: as for the native rule.
    """
    native.py_binary(name = name, legacy_create_init = False, **kwargs)  # buildifier: disable=native-py

def py_test(name, **kwargs):
    """A native py_test that adds no __init__.py files, so ops/ and testing/ stay namespaces.

    Args:
      name: the target's name.
      **kwargs: as for the native rule; `env` sets environment variables of the test.
    """
    native.py_test(name = name, legacy_create_init = False, **kwargs)  # buildifier: disable=native-py
