import contextlib
import io
from unittest import mock

from absl import app
from absl.testing import absltest

from testing import command, main


class CommandTest(absltest.TestCase):
    def _run(self, function):
        self.said, said = "", io.StringIO()
        with (
            mock.patch.object(app, "run", lambda wrapped: wrapped(["folder/tool.py", "a"])),
            contextlib.redirect_stderr(said),
        ):
            try:
                command.run(function)
            finally:
                self.said = said.getvalue()

    def test_a_mistake_is_one_line_and_a_hint(self):
        def wrong(argv):
            raise app.UsageError(f"--grid: got {argv[1]}")

        with self.assertRaises(SystemExit) as caught:
            self._run(wrong)
        self.assertEqual(self.said, "tool.py: --grid: got a\n--help lists the flags\n")
        self.assertEqual(caught.exception.code, 1)

    def test_what_is_none_of_the_user_s_goes_through(self):
        with self.assertRaises(KeyError):
            self._run(lambda argv: {}[argv[1]])
        seen = []
        self._run(seen.append)
        self.assertEqual((seen, self.said), ([["folder/tool.py", "a"]], ""))


if __name__ == "__main__":
    main.main()
