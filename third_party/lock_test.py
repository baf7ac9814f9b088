import pathlib

from absl.testing import absltest

from third_party import lock, pip_install

FOLDER = pathlib.Path(__file__).parent


class LockTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.texts = {name: (FOLDER / name).read_text() for name in lock.LOCKS}
        self.locks = {name: pip_install.parse_lock(text) for name, text in self.texts.items()}

    def test_every_requirement_is_locked_with_hashes(self):
        for name, pins in self.locks.items():
            source = (FOLDER / lock.LOCKS[name][0]).read_text()
            wanted = [line for line in source.splitlines() if line]
            for line in wanted:
                if not line.startswith("#"):
                    self.assertIn(line.partition("=")[0].partition("<")[0], pins, name)
            for requirement in pins.values():
                self.assertRegex(requirement, r"^[A-Za-z0-9._-]+==\S+ +--hash=sha256:[0-9a-f]{64}")

    def test_locks_agree_on_versions(self):
        self.assertEmpty(lock.disagreements(self.texts))

    def test_disagreements_are_found(self):
        texts = {"a": "torch==2.13.0+cpu --hash=x\nnumpy==1.0 --hash=x", "b": "torch==2.13.0 \n"}
        self.assertEmpty(lock.disagreements(texts))
        self.assertLen(lock.disagreements({**texts, "c": "numpy==2.0 --hash=x"}), 1)

    def test_no_lock_names_a_host_or_a_folder(self):
        for name, text in self.texts.items():
            for line in text.removeprefix(lock.header(name)).splitlines():
                self.assertNotRegex(line, r"//|\s/|--find-links|--index|@", name)

    def test_the_cpu_build_of_torch_is_locked_on_x86_64(self):
        self.assertStartsWith(self.locks[lock.CPU_LOCK]["torch"], "torch==2.13.0+cpu ")
        self.assertNotIn("triton", self.locks[lock.CPU_LOCK])


if __name__ == "__main__":
    absltest.main()
