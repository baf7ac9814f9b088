"""Everything that a WORKSPACE needs for ascend_ops: this project's own and that of its users."""

load("//third_party:bazel4.bzl", "bazel4_repositories")
load("//third_party:python_repositories.bzl", "python_repositories")

def ascend_ops_repositories():
    """Declares the interpreter and the pip repositories and registers the Python toolchain."""
    bazel4_repositories()
    python_repositories()
    native.register_toolchains("@ops_python//:toolchain")
