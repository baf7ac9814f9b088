"""buildifier_repository: buildifier from its npm package, whose archive carries the programs."""

# Exits with a code of its own, so that a missing tool cannot pass for a clean tree.
_MISSING = """#!/bin/sh
echo "{reason}"
exit 127
"""

_BUILD = """exports_files(["buildifier"])
"""

_PROGRAMS = {
    "aarch64": "buildifier-linux_arm64",
    "x86_64": "buildifier-linux_amd64",
}

def _buildifier_repository_impl(repository_ctx):
    repository_ctx.symlink(repository_ctx.attr._package, "package.json")
    repository_ctx.symlink(repository_ctx.attr._lock, "package-lock.json")
    repository_ctx.file("BUILD.bazel", _BUILD, executable = False)
    npm = repository_ctx.which("npm")
    if not npm:
        repository_ctx.file("buildifier", _MISSING.replace("{reason}", "npm is not on PATH"))
        return

    # `npm ci` checks the archive against the lock's sha512.
    result = repository_ctx.execute([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"])
    if result.return_code:
        fail("npm could not fetch buildifier:\n" + result.stdout + result.stderr)
    machine = repository_ctx.execute(["uname", "-m"]).stdout.strip()
    repository_ctx.symlink("node_modules/@bazel/buildifier/" + _PROGRAMS[machine], "buildifier")

buildifier_repository = repository_rule(
    implementation = _buildifier_repository_impl,
    attrs = {
        "_lock": attr.label(default = "//third_party/buildifier:package-lock.json"),
        "_package": attr.label(default = "//third_party/buildifier:package.json"),
    },
    doc = "Makes `//:buildifier`; where there is no npm, a stand-in that says so and exits with 127.",
    environ = ["PATH"],
)
