"""Compares the device table of Starlark, which Bazel lays here as JSON, with devices.py and
.bazelrc."""

import json
import os
import re

from absl.testing import absltest

from testing import devices, main

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def _bazelrc() -> list[str]:
    with open(os.path.join(_ROOT, ".bazelrc"), encoding="utf-8") as file:
        return [line.strip() for line in file if line.strip() and not line.startswith("#")]


def _table() -> dict:
    with open(os.path.join(_ROOT, "testing", "device_table.json"), encoding="utf-8") as file:
        return json.load(file)


class TablesAgreeTest(absltest.TestCase):
    """devices.py, devices.bzl and .bazelrc name the same devices."""

    def test_starlark_and_python(self):
        table = _table()
        self.assertCountEqual(table, devices.NAMES)
        for name, traits in table.items():
            device = devices.get(name)
            self.assertEqual(traits["accelerator"], device.is_accelerator, name)
            self.assertEqual(traits["simulates"], getattr(device, "architecture", None), name)

    def test_every_device_has_a_config_with_its_whole_filter(self):
        lines = _bazelrc()
        for name, traits in _table().items():
            self.assertIn(f"test:{name} --test_tag_filters={name}", lines)
            configs = [
                name,
                *re.findall(rf"^test:{name} --config=(\S+)$", "\n".join(lines), re.MULTILINE),
            ]
            self.assertTrue(
                any(f"test:{config} --build_tag_filters=" in lines for config in configs), name
            )
            one_at_a_time = any(f"test:{config} --local_test_jobs=1" in lines for config in configs)
            self.assertEqual(one_at_a_time, traits["accelerator"], name)

    def test_the_default_leaves_out_every_accelerator(self):
        left_out = [f"-{name}" for name, traits in _table().items() if traits["accelerator"]]
        for flag in ("test_tag_filters", "build_tag_filters"):
            (filters,) = re.findall(rf"^test --{flag}=(\S+)$", "\n".join(_bazelrc()), re.MULTILINE)
            self.assertCountEqual(filters.split(","), left_out)

    def test_only_accelerators_have_performance_targets(self):
        for name, traits in _table().items():
            self.assertEqual("performance" in traits["kinds"], traits["accelerator"], name)


if __name__ == "__main__":
    main.main()
