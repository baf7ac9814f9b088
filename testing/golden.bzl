"""op_golden: a folder of reference results, made by a build action and cached like any other output."""

def _op_golden_impl(ctx):
    tensors = ctx.actions.declare_file(ctx.label.name + "/goldens.safetensors")
    manifest = ctx.actions.declare_file(ctx.label.name + "/manifest.json")
    ctx.actions.run(
        executable = ctx.executable.writer,
        arguments = ["--spec=" + ctx.attr.spec_module, "--out=" + manifest.dirname],
        outputs = [tensors, manifest],
        mnemonic = "OpGolden",
        progress_message = "Computing goldens of %s" % ctx.label,
        # The same bytes everywhere: no other thread count, no hash order. A reference must not need the network; where
        # Bazel's sandbox cannot block it (containers without user namespaces) it is simply not used.
        env = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"},
        execution_requirements = {"block-network": "1"},
    )
    files = [tensors, manifest]
    return [DefaultInfo(files = depset(files), runfiles = ctx.runfiles(files))]

op_golden = rule(
    implementation = _op_golden_impl,
    doc = "Computes the references of an op's ci cases into <name>/goldens.safetensors and <name>/manifest.json.",
    attrs = {
        "spec_module": attr.string(mandatory = True, doc = "Module that holds the op's SPEC."),
        "writer": attr.label(
            mandatory = True,
            executable = True,
            cfg = "exec",
            doc = "A py_binary of testing/golden_main.py that has the spec and the references as deps.",
        ),
    },
)
