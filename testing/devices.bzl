"""The table of devices: what Bazel needs to know about each.

testing/devices.py drives them and .bazelrc has a --config for each; devices_test compares all three.
"""

KINDS = ["unit", "accuracy", "performance", "memory"]

# `import torch` would load torch_npu by itself, and fail with advice of its own where CANN is missing; devices.py loads it
# and says what it looked for.
_NPU_ENV = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}

def _simulator(architecture):
    return struct(
        accelerator = False,
        deps = ["//testing/npu_sim:executor"],
        env = {},
        kinds = ["accuracy"],
        # As many as keep each well below the time limit on busy cores.
        shards = 4,
        simulates = architecture,
    )

# name: the tag and the --config of the device.
#   kinds       the kinds of target it can run
#   simulates   the architecture whose compile target's modules it executes, or None
#   shards      parts in which an accuracy target runs
#   deps        what its tests need beside the op
#   env         the environment that its tests need
#   accelerator true where the device is hardware: such tests run alone, outside the sandbox, never from a cache
DEVICES = {
    "cpu-reference": struct(
        accelerator = False,
        deps = [],
        # Triton reads it when a kernel is decorated, so it must be there before any import.
        env = {"TRITON_INTERPRET": "1"},
        # Times of an interpreter say nothing about a kernel, so it has no performance target.
        kinds = ["unit", "accuracy", "memory"],
        shards = 1,
        simulates = None,
    ),
    # What it estimates of time ranks kernels and is no measurement. What an op allocates is the same as on other devices.
    "npu-arch32-sim": _simulator("arch32"),
    "npu-arch35-sim": _simulator("arch35"),
    "npu-arch32": struct(
        accelerator = True,
        deps = ["//third_party:torch_npu"],
        env = _NPU_ENV,
        kinds = KINDS,
        shards = 1,
        simulates = None,
    ),
    "npu-arch35": struct(
        accelerator = True,
        deps = ["//third_party:torch_npu"],
        env = _NPU_ENV,
        kinds = KINDS,
        shards = 1,
        simulates = None,
    ),
    "cuda": struct(
        accelerator = True,
        deps = [],
        env = {},
        kinds = KINDS,
        shards = 1,
        simulates = None,
    ),
}

# exclusive: alone on the machine. external: never from a cache. no-sandbox, no-remote: the device is here.
ACCELERATOR_TAGS = ["exclusive", "external", "no-remote", "no-sandbox"]

def _device_table_impl(ctx):
    out = ctx.actions.declare_file(ctx.label.name + ".json")
    table = {
        name: {"accelerator": device.accelerator, "kinds": device.kinds, "simulates": device.simulates}
        for name, device in DEVICES.items()
    }
    ctx.actions.write(out, json.encode(table))
    return [DefaultInfo(files = depset([out]), runfiles = ctx.runfiles([out]))]

device_table = rule(
    implementation = _device_table_impl,
    doc = "Writes DEVICES as JSON, for the test that compares it with the Python module and .bazelrc.",
)
