"""op_test_suite: all test targets of an op from one declaration."""

load("//testing/npu_compile:npu_compile.bzl", "ARCHITECTURES", "npu_compile_test")
load("//third_party:python.bzl", "py_binary", "py_test")
load(":devices.bzl", "ACCELERATOR_TAGS", "DEVICES")
load(":golden.bzl", "op_golden")

def _kit(target):
    # Relative to this file's repository, so that the macro works from any workspace.
    return str(Label("//testing:" + target))

def _npu_sim(target):
    return str(Label("//testing/npu_sim:" + target))

def _target(label):
    return label.split(":")[-1].split("/")[-1]

def op_test_suite(
        name,
        op,
        spec,
        reference,
        unit_srcs = [],
        unit_deps = [],
        baselines = [],
        npu_budgets = None,
        mutation_case = "",
        npu_every_chip = True,
        devices = DEVICES.keys(),
        timeout = "moderate"):
    """Declares every test target of an op, a golden and a suite of them.

    For op ":scan", spec ":spec" and device "npu-arch32" the targets are scan_accuracy_npu_arch32_test, scan_performance_…,
    scan_memory_… and one scan_<stem>_npu_arch32_test per unit source <stem>_test.py. Each carries the tags of its kind and its device.
    scan_golden is the folder of references that accuracy targets read. scan_compile_arch32_test and scan_compile_arch35_test
    judge what the NPU's compiler makes of every kernel that the op's cases launch; they need no device. What they compile
    is what scan_accuracy_npu_arch32_sim_test executes. A package with several ops calls this once for each: with spec ":bwd_spec"
    all names begin with scan_bwd instead.

    Args:
      name: the test_suite that holds all targets which run without hardware.
      op: label of the op's py_library.
      spec: label of the py_library of the package's spec.py or <part>_spec.py (see testing/spec.py), called like the file. It
        must not depend on kernels, or every edit of one would compute the goldens again.
      reference: label of the py_library with the functions that the spec names as golden and same_precision.
      unit_srcs: test files, *_test.py; `testing.unit.DEVICE` is the device they run on.
      unit_deps: what the unit tests need beside op, spec and reference.
      baselines: labels of the py_librarys with the functions that the spec names as baselines, for performance targets.
      npu_budgets: label of the py_library of the package's npu_budgets.py, or another file that it is called like, which states what the kernels may cost once they
        are compiled (see testing/npu_compile/budgets.py). None asks only that they compile.
      mutation_case: a small case that launches one kernel. For each simulated device a target <op>_mutation_<device>_test then
        deletes the kernel's synchronisations, one at a time, and fails unless the simulator notices.
      npu_every_chip: compiles for each chip of an architecture, or only for the first one: for kernels with no constant
        that depends on the number of cores.
      devices: the devices that the op supports, keys of DEVICES. The others get `manual` targets, which say on request
        what the op says on such a device.
      timeout: Bazel's timeout of each target.
    """
    for device in devices:
        if device not in DEVICES:
            fail("devices: got %r, allowed are %s" % (device, ", ".join(DEVICES.keys())))
    prefix = _target(op)
    if _target(spec) != "spec":
        if not _target(spec).endswith("_spec"):
            fail("spec: got %r, allowed are ':spec' and ':<part>_spec', the name of the file" % spec)
        prefix += "_" + _target(spec)[:-len("_spec")]
    package = native.package_name().replace("/", ".")
    spec_module = package + "." + _target(spec)
    golden = prefix + "_golden"
    py_binary(
        name = golden + "_writer",
        testonly = True,
        srcs = [_kit("golden_main.py")],
        main = _kit("golden_main.py"),
        deps = [spec, reference, _kit("golden_main")],
    )
    op_golden(
        name = golden,
        testonly = True,
        spec_module = spec_module,
        visibility = ["//visibility:public"],
        writer = ":" + golden + "_writer",
    )
    goldens = native.package_name() + "/" + golden
    suite = []
    for device, traits in DEVICES.items():
        manual = device not in devices
        tags = [device] + (ACCELERATOR_TAGS if traits.accelerator else []) + (["manual"] if manual else [])
        suffix = "_%s_test" % device.replace("-", "_")
        compiled_args, compiled_data = [], []
        if traits.simulates:
            compiled = "%s_compile_%s" % (prefix, traits.simulates)
            compiled_args = ["--compiled=%s/%s" % (native.package_name(), compiled)]
            compiled_data = [":%s_stages" % compiled]
        targets = []
        for kind in traits.kinds:
            if kind != "unit":
                targets.append(prefix + "_" + kind + suffix)
                py_test(
                    name = targets[-1],
                    timeout = timeout,
                    srcs = [_kit(kind + "_main.py")],
                    main = _kit(kind + "_main.py"),
                    args = ["--spec=" + spec_module, "--device=" + device, "--goldens=" + goldens] + compiled_args,
                    data = [":" + golden] + compiled_data,
                    env = traits.env,
                    shard_count = traits.shards if traits.shards > 1 else None,
                    tags = tags + [kind],
                    deps = [op, spec, reference, _kit(kind + "_main")] + [str(Label(dep)) for dep in traits.deps] +
                           (baselines if kind == "performance" else []),
                )
        for src in unit_srcs if "unit" in traits.kinds else []:
            targets.append(prefix + "_" + src.replace("_test.py", "") + suffix)
            py_test(
                name = targets[-1],
                timeout = timeout,
                srcs = [src],
                main = src,
                env = dict(traits.env, OPS_TEST_DEVICE = device),
                tags = tags + ["unit"],
                deps = [op, spec, reference, _kit("unit")] + unit_deps + [str(Label(dep)) for dep in traits.deps],
            )
        if traits.simulates and mutation_case:
            targets.append(prefix + "_mutation" + suffix)
            py_test(
                name = targets[-1],
                timeout = "long",
                srcs = [_npu_sim("mutation_main.py")],
                main = _npu_sim("mutation_main.py"),
                args = ["--spec=" + spec_module, "--device=" + device, "--case=" + mutation_case] + compiled_args,
                data = compiled_data,
                env = traits.env,
                tags = tags + ["mutation"],
                deps = [op, spec, _npu_sim("mutation_main")] + [str(Label(dep)) for dep in traits.deps],
            )
        if not manual and not traits.accelerator:
            suite += targets
    unsupported = [
        arch
        for arch in ARCHITECTURES
        if "npu-" + arch not in devices and "npu-%s-sim" % arch not in devices
    ]
    suite += npu_compile_test(
        name = prefix + "_compile",
        budgets = npu_budgets,
        budgets_module = package + "." + _target(npu_budgets) if npu_budgets else "",
        every_chip = npu_every_chip,
        manual = unsupported,
        spec_module = spec_module,
        deps = [op, spec],
    )
    native.test_suite(
        name = name,
        tests = [":" + target for target in suite],
    )
