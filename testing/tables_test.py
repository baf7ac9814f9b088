"""Tables as text."""

from absl.testing import absltest

from testing import main, tables

_ROWS = [["", "a|b"], ["long", "1"]]


class TablesTest(absltest.TestCase):
    def test_table(self):
        self.assertEqual(tables.table(_ROWS), "      a|b\n----  ---\nlong  1")

    def test_markdown(self):
        self.assertEqual(tables.markdown(_ROWS), "|  | a\\|b |\n|---|---|\n| long | 1 |")


if __name__ == "__main__":
    main.main()
