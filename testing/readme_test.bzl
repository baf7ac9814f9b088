"""readme_test: a README in another language says what the original says."""

load("//third_party:python.bzl", "py_test")

def readme_test(name, original, translation):
    """A test that both have the same headings, code, tables, figures and links; see readme_main.py.

    Args:
      name: the target's name.
      original: the README, a file of this package.
      translation: the same in another language.
    """

    # Relative to this file's repository, so that the macro works from any workspace.
    source = str(Label("//testing:readme_main.py"))
    py_test(
        name = name,
        size = "small",
        srcs = [source],
        main = source,
        args = [
            "--original=$(rootpath %s)" % original,
            "--translation=$(rootpath %s)" % translation,
        ],
        data = [
            original,
            translation,
        ],
        deps = [str(Label("//testing:readme_main"))],
    )
