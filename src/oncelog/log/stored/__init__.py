"""What a log stores beside its records: manifests, files, snapshots, bases, policies."""
