"""Stand-ins for the repositories that Bazel 4's embedded tools load and would fetch from GitHub.

Bazel 4's own BUILD files load @rules_cc, @rules_java and @rules_proto, whose rules at that time were
only wrappers around the native ones, and refer to @remote_coverage_tools. The stand-ins forward to
the native rules, so a build needs no network for them. Bazel 7 and later do not use this file.
"""

_FORWARDED = {
    "rules_cc": {
        "cc/defs.bzl": [
            "cc_binary",
            "cc_import",
            "cc_library",
            "cc_proto_library",
            "cc_test",
            "cc_toolchain",
            "cc_toolchain_suite",
            "objc_library",
        ],
    },
    "rules_java": {
        "java/defs.bzl": [
            "java_binary",
            "java_import",
            "java_library",
            "java_proto_library",
            "java_runtime",
            "java_toolchain",
        ],
    },
    "rules_proto": {
        "proto/defs.bzl": [
            "proto_lang_toolchain",
            "proto_library",
        ],
    },
}

_COVERAGE_BUILD = """package(default_visibility = ["//visibility:public"])

filegroup(name = "coverage_report_generator")

filegroup(name = "lcov_merger")
"""

def _native_rules_impl(repository_ctx):
    for path, rules in _FORWARDED[repository_ctx.attr.stands_for].items():
        repository_ctx.file(path.rpartition("/")[0] + "/BUILD.bazel", "")
        repository_ctx.file(path, "".join(["%s = native.%s\n" % (rule, rule) for rule in rules]))
    repository_ctx.file("BUILD.bazel", "")

_native_rules = repository_rule(
    implementation = _native_rules_impl,
    attrs = {"stands_for": attr.string(mandatory = True)},
)

def _no_coverage_impl(repository_ctx):
    repository_ctx.file("BUILD.bazel", _COVERAGE_BUILD)

_no_coverage = repository_rule(implementation = _no_coverage_impl)

def is_bazel4():
    """True on Bazel 4. Debian's build has no version string, so a later feature tells it apart."""
    return not hasattr(native, "package_default_visibility") and native.bazel_version[:2] in ["", "4."]

def bazel4_repositories():
    """Declares the stand-ins on Bazel 4; does nothing on later versions."""
    if not is_bazel4():
        return
    for name in _FORWARDED:
        if not native.existing_rule(name):
            _native_rules(name = name, stands_for = name)
    if not native.existing_rule("remote_coverage_tools"):
        _no_coverage(name = "remote_coverage_tools")
