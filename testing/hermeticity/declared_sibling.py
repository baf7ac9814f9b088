"""A file that hermeticity_test depends on."""
