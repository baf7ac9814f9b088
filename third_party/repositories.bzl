"""Everything that a WORKSPACE needs for ascend_ops: this project's own and that of its users."""

load("//third_party:bazel4.bzl", "bazel4_repositories")
load("//third_party:python_repositories.bzl", "python_repositories")
load("//third_party/buildifier:buildifier.bzl", "buildifier_repository")

# buildifier: disable=unnamed-macro
def ascend_ops_repositories():
    """Declares the interpreter, the packages and buildifier, and registers the Python toolchain."""
    bazel4_repositories()
    python_repositories()
    buildifier_repository(name = "ops_buildifier")
    native.register_toolchains("@ops_python//:toolchain")
