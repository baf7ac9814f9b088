"""A file beside hermeticity_test that it does not depend on."""
