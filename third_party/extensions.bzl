"""The module extension behind MODULE.bazel."""

load("//third_party:python_repositories.bzl", "python_repositories")
load("//third_party/buildifier:buildifier.bzl", "buildifier_repository")

def _ops_repositories_impl(_module_ctx):
    python_repositories()
    buildifier_repository(name = "ops_buildifier")

ops_repositories = module_extension(
    implementation = _ops_repositories_impl,
    doc = "The interpreter, the Python packages and buildifier.",
)
