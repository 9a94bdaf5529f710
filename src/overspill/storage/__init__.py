"""Files with a meaning: the run workspace, array files, the manifest, checksums."""
