"""declared_targets: the rules that a BUILD file declared so far, as JSON, for a test of the macros it called."""

def _declared_targets_impl(ctx):
    out = ctx.actions.declare_file(ctx.label.name + ".json")
    ctx.actions.write(out, ctx.attr.content)
    return [DefaultInfo(files = depset([out]), runfiles = ctx.runfiles([out]))]

_declared_targets = rule(
    implementation = _declared_targets_impl,
    attrs = {"content": attr.string(mandatory = True)},
)

def declared_targets(name):
    """Writes {target: [kind of rule, tag, ...]} of every rule above in the BUILD file to <name>.json.

    Args:
      name: the target's name.
    """
    table = {
        target: [traits["kind"]] + list(traits.get("tags", []))
        for target, traits in native.existing_rules().items()
    }
    _declared_targets(name = name, content = json.encode(table))
