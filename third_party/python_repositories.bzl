"""The interpreter and the pip repositories, for WORKSPACE and for MODULE.bazel alike."""

load("//third_party:pip_repository.bzl", "pip_repository")
load("//third_party:python_toolchain.bzl", "python_toolchain")

# What distributions import although their metadata does not say so.
_EXTRA_DEPS = {
    "torch_npu": ["numpy", "pyyaml", "torch"],
    "triton_ascend": ["numpy", "pybind11"],
}

def python_repositories():
    """Declares @ops_python, @ops_pypi, @ops_pypi_cuda and @ops_ascendnpu_ir; each is fetched when first needed."""
    python_toolchain(name = "ops_python")

    # The index's torch depends on triton, which has the same import name as triton-ascend.
    pip_repository(
        name = "ops_pypi",
        extra_deps = _EXTRA_DEPS,
        fallback_lock_x86_64 = Label("//third_party:requirements_x86_64_index.txt"),
        lock_aarch64 = Label("//third_party:requirements_aarch64.txt"),
        lock_x86_64 = Label("//third_party:requirements_x86_64.txt"),
        omit = ["triton"],
    )

    # Several GB; only --config=cuda refers to it.
    pip_repository(
        name = "ops_pypi_cuda",
        lock_aarch64 = Label("//third_party:requirements_aarch64.txt"),
        lock_x86_64 = Label("//third_party:requirements_x86_64_index.txt"),
        omit = [
            "torch-npu",
            "triton-ascend",
        ],
    )

    # 161 MB to download, 490 MB on disk; only targets that compile kernels for an NPU refer to it.
    pip_repository(
        name = "ops_ascendnpu_ir",
        lock_aarch64 = Label("//third_party:ascendnpu_ir_aarch64.txt"),
        lock_x86_64 = Label("//third_party:ascendnpu_ir_x86_64.txt"),
    )
