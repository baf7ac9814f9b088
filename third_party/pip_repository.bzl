"""pip_repository: the distributions of a hash lock, one py_library each.

In a file of its own because any edit of it makes every pip repository be fetched again.
"""

def _full(label):
    """The label as another repository writes it; Bazel 4 leaves out the main repository's name."""
    return ("@ascend_ops" if str(label).startswith("//") else "") + str(label)

def _pip_repository_impl(repository_ctx):
    attr = repository_ctx.attr
    machine = repository_ctx.execute(["uname", "-m"]).stdout.strip()
    locks = {
        "aarch64": [attr.lock_aarch64],
        "x86_64": [attr.lock_x86_64, attr.fallback_lock_x86_64],
    }
    if machine not in locks:
        fail("ascend_ops has locked Python packages for x86_64 and aarch64, not for " + machine)

    # All labels are resolved before any work: resolving may restart this function.
    lock_paths = [repository_ctx.path(lock) for lock in locks[machine] if lock]
    script = repository_ctx.path(attr._script)
    python = repository_ctx.path(attr._python)

    command = [python, script, "--lock", lock_paths[0], "--python_bzl", _full(attr._python_bzl)]
    if len(lock_paths) > 1:
        command += ["--fallback_lock", lock_paths[1]]
    for name in attr.omit:
        command += ["--omit", name]
    command += ["--extra_deps", json.encode(attr.extra_deps)]
    repository_ctx.report_progress("downloading and installing the locked Python packages")
    result = repository_ctx.execute(command, timeout = 3600)
    if result.return_code:
        fail(result.stderr + result.stdout)
    if result.stdout:
        print(result.stdout)  # buildifier: disable=print

pip_repository = repository_rule(
    implementation = _pip_repository_impl,
    attrs = {
        "extra_deps": attr.string_list_dict(
            doc = "Target name -> target names it needs although its metadata does not say so.",
        ),
        "fallback_lock_x86_64": attr.label(
            doc = "Used, with a message, where pip does not offer the torch of lock_x86_64.",
        ),
        "lock_aarch64": attr.label(mandatory = True),
        "lock_x86_64": attr.label(mandatory = True),
        "omit": attr.string_list(
            doc = "Locked distributions to leave out, also as dependencies of others.",
        ),
        "_python": attr.label(default = "@ops_python//:bin/python3"),
        "_python_bzl": attr.label(default = "//third_party:python.bzl"),
        "_script": attr.label(default = "//third_party:pip_install.py"),
    },
    doc = "Installs a hash lock with one folder and one py_library per distribution.",
)
