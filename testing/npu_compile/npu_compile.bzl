"""npu_compile_test: kernels compiled for Ascend's architectures by build actions, judged by tests."""

load("//third_party:python.bzl", "py_binary", "py_test")

ARCHITECTURES = ["arch32", "arch35"]

def _kit(target):
    # Relative to this file's repository, so that the macro works from any workspace.
    return str(Label("//testing/npu_compile:" + target))

def _declare_shards(ctx, pattern):
    return [
        ctx.actions.declare_file("%s/%s" % (ctx.label.name, pattern % index))
        for index in range(ctx.attr.shards)
    ]

def _npu_compile_impl(ctx):
    plan = ctx.actions.declare_file(ctx.label.name + "/plan.json")
    shards = _declare_shards(ctx, "shard_%d.json")
    source = "--spec=" + ctx.attr.spec_module
    if ctx.attr.kernels_module:
        source = "--kernels=" + ctx.attr.kernels_module
    ctx.actions.run(
        executable = ctx.executable.lower,
        arguments = [
            source,
            "--arch=" + ctx.attr.arch,
            "--out=" + plan.dirname,
            "--shards=%d" % ctx.attr.shards,
            "--every_chip=%s" % ctx.attr.every_chip,
        ],
        outputs = [plan] + shards,
        mnemonic = "NpuLower",
        progress_message = "Lowering the kernels of %s" % ctx.label,
        env = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"},
        execution_requirements = {"block-network": "1"},
    )
    results = _declare_shards(ctx, "result_%d.json")
    stages = _declare_shards(ctx, "stages_%d.zip")

    # One action per shard, with nothing but the shard and the compiler as inputs: an edit that leaves a kernel's lowered
    # form as it was compiles nothing again.
    for shard, result, stage in zip(shards, results, stages):
        ctx.actions.run(
            executable = ctx.executable._compiler,
            arguments = [
                "--shard=" + shard.path,
                "--arch=" + ctx.attr.arch,
                "--limit_s=%d" % ctx.attr.limit_s,
                "--out=" + result.path,
                "--stages=" + stage.path,
            ],
            inputs = [shard],
            outputs = [result, stage],
            mnemonic = "NpuCompile",
            progress_message = "Compiling %s, part %s" % (ctx.label, shard.basename),
            env = {"PYTHONHASHSEED": "0"},
            execution_requirements = {"block-network": "1"},
        )
    files = [plan] + results
    return [
        DefaultInfo(files = depset(files + stages), runfiles = ctx.runfiles(files)),
        OutputGroupInfo(stages = depset(stages)),
    ]

_npu_compile = rule(
    implementation = _npu_compile_impl,
    attrs = {
        "arch": attr.string(mandatory = True, values = ARCHITECTURES),
        "every_chip": attr.bool(mandatory = True, doc = "Or only the architecture's first."),
        "kernels_module": attr.string(doc = "Module that holds KERNELS."),
        "limit_s": attr.int(mandatory = True, doc = "Seconds for one compilation."),
        "lower": attr.label(
            mandatory = True,
            executable = True,
            cfg = "exec",
            doc = "A py_binary of lower_main.py that has the kernels as deps.",
        ),
        "shards": attr.int(mandatory = True, doc = "Parts that are compiled, and cached, apart."),
        "spec_module": attr.string(doc = "Module that holds an op's SPEC."),
        "_compiler": attr.label(
            default = Label("//testing/npu_compile:compile_main"),
            executable = True,
            cfg = "exec",
        ),
    },
    doc = """Compiles kernels for one architecture.

<name>/plan.json says which case launches what, <name>/result_<n>.json what each compilation found, <name>/stages_<n>.zip
has every stage. A kernel that does not compile is a result, not a failed action.""",
)

def npu_compile_test(
        name,
        deps,
        spec_module = "",
        kernels_module = "",
        budgets = None,
        budgets_module = "",
        architectures = ARCHITECTURES,
        shards = 8,
        every_chip = True,
        limit_s = 180,
        testonly = True,
        manual = []):
    """Compiles kernels for arch32 and arch35 on this machine and declares a test of each.

    The targets are <name>_<architecture> (the compilations, cached build actions), <name>_<architecture>_stages (of those,
    the zip files with every stage) and <name>_<architecture>_test, which reads the results, prints the report and fails with
    a diagnosis. They need no NPU, no CANN and no driver.

    Args:
      name: begins the names of all targets.
      deps: libraries of the kernels, and of the spec or the module with KERNELS.
      spec_module: module of an op's SPEC: every case of its table is planned, every variant that a case launches compiled.
      kernels_module: or a module with KERNELS, a tuple of testing.npu_compile.planning.Kernel.
      budgets: py_library of the module with the budgets.
      budgets_module: that module; it holds BUDGETS, a tuple of testing.npu_compile.budgets.Budget.
      architectures: arch32 (Ascend 910B, 910_93xx), arch35 (Ascend 950).
      shards: how many parts are compiled in parallel and cached apart.
      every_chip: compiles for each chip of an architecture, or only for the first one.
      limit_s: seconds after which a compilation is ended and counts as a time-out.
      testonly: as for any rule.
      manual: architectures whose targets are only built when asked for by name.

    Returns:
      The names of the tests that are not manual.
    """
    if bool(spec_module) == bool(kernels_module):
        fail("npu_compile_test %s: one of spec_module and kernels_module is needed" % name)
    py_binary(
        name = name + "_lower",
        testonly = testonly,
        srcs = [_kit("lower_main.py")],
        main = _kit("lower_main.py"),
        tags = ["manual"],
        deps = deps + [_kit("lower_main")],
    )
    tests = []
    for arch in architectures:
        compiled = "%s_%s" % (name, arch)
        tags = ["manual"] if arch in manual else []
        _npu_compile(
            name = compiled,
            testonly = testonly,
            arch = arch,
            every_chip = every_chip,
            kernels_module = kernels_module,
            limit_s = limit_s,
            lower = ":%s_lower" % name,
            shards = shards,
            spec_module = spec_module,
            tags = tags,
        )
        native.filegroup(
            name = compiled + "_stages",
            testonly = testonly,
            srcs = [":" + compiled],
            output_group = "stages",
            tags = tags,
        )
        arguments = ["--results=%s/%s" % (native.package_name(), compiled)]
        if budgets_module:
            arguments.append("--budgets=" + budgets_module)
        py_test(
            name = compiled + "_test",
            size = "small",
            srcs = [_kit("judge_main.py")],
            args = arguments,
            data = [":" + compiled],
            main = _kit("judge_main.py"),
            tags = tags + ["npu-compile", "npu-compile-" + arch],
            deps = [_kit("judge_main")] + ([budgets] if budgets else []),
        )
        if arch not in manual:
            tests.append(compiled + "_test")
    return tests
