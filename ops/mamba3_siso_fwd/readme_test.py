"""README.zh-CN.md has the headings, code, tables and figures of README.md."""

import os
import re

from absl.testing import absltest

_FOLDER = os.path.dirname(os.path.abspath(__file__))


def _read(name: str) -> str:
    with open(os.path.join(_FOLDER, name), encoding="utf-8") as file:
        return file.read()


def _code(text: str) -> list[str]:
    return re.findall(r"^```.*?^```", text, re.M | re.S)


def _prose(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)


def _levels(text: str) -> list[int]:
    return [len(marks) for marks in re.findall(r"^(#+) ", _prose(text), re.M)]


def _sections(text: str) -> list[str]:
    return re.split(r"^#+ ", _prose(text), flags=re.M)


def _tables(text: str) -> list[list[str]]:
    """Figures of each row of each table, in order."""
    rows = [line for line in _prose(text).splitlines() if line.startswith("|")]
    return [_figures(row) for row in rows]


def _figures(text: str) -> list[str]:
    """Numbers, without their thousands' commas; dates and versions fall apart the same way."""
    return re.findall(r"\d+(?:\.\d+)?", re.sub(r"(?<=\d),(?=\d{3})", "", text))


class ReadmeTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.english = _read("README.md")
        self.chinese = _read("README.zh-CN.md")

    def test_headings(self):
        self.assertEqual(_levels(self.chinese), _levels(self.english))

    def test_code_blocks(self):
        self.assertEqual(_code(self.chinese), _code(self.english))

    def test_figures_of_tables(self):
        self.assertEqual(_tables(self.chinese), _tables(self.english))

    def test_figures_of_each_section(self):
        # In a sentence the order of two figures may differ between the languages.
        pairs = zip(_sections(self.chinese), _sections(self.english), strict=True)
        for chinese, english in pairs:
            with self.subTest(english.partition("\n")[0]):
                self.assertCountEqual(_figures(chinese), _figures(english))

    def test_links(self):
        def targets(text):
            found = re.findall(r"\]\(([^)#]+)", text)
            return sorted(t for t in found if not t.startswith("README"))

        self.assertEqual(targets(self.chinese), targets(self.english))
        self.assertIn("](README.zh-CN.md)", self.english)
        self.assertIn("](README.md)", self.chinese)


if __name__ == "__main__":
    absltest.main()
