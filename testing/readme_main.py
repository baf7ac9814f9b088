"""Target of a translated README: it has the headings, code, tables, figures and links of the
original.

Without Bazel, at the repository's root:
    python3 -m testing.readme_main --original=ops/chunk_kda/README.md \
        --translation=ops/chunk_kda/README.zh-CN.md
"""

import pathlib
import re

from absl import flags
from absl.testing import absltest

from testing import main

_ORIGINAL = flags.DEFINE_string("original", None, "The README.")
_TRANSLATION = flags.DEFINE_string("translation", None, "The same in another language.")

_CODE = re.compile(r"^```.*?^```", re.M | re.S)


def _prose(text: str) -> str:
    return _CODE.sub("", text)


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
        self.paths = [pathlib.Path(str(flag.value)) for flag in (_ORIGINAL, _TRANSLATION)]
        self.original, self.translation = (path.read_text("utf-8") for path in self.paths)

    def test_headings(self):
        self.assertEqual(_levels(self.translation), _levels(self.original))

    def test_code_blocks(self):
        self.assertEqual(_CODE.findall(self.translation), _CODE.findall(self.original))

    def test_figures_of_tables(self):
        self.assertEqual(_tables(self.translation), _tables(self.original))

    def test_figures_of_each_section(self):
        # In a sentence the order of two figures may differ between the languages.
        pairs = zip(_sections(self.translation), _sections(self.original), strict=True)
        for translation, original in pairs:
            with self.subTest(original.partition("\n")[0]):
                self.assertCountEqual(_figures(translation), _figures(original))

    def test_links(self):
        original, translation = (path.name for path in self.paths)

        def targets(text):
            found = re.findall(r"\]\(([^)#]+)", text)
            return sorted(target for target in found if target not in (original, translation))

        self.assertEqual(targets(self.translation), targets(self.original))
        self.assertIn(f"]({translation})", self.original)
        self.assertIn(f"]({original})", self.translation)


if __name__ == "__main__":
    flags.mark_flags_as_required([_ORIGINAL.name, _TRANSLATION.name])
    main.main()
