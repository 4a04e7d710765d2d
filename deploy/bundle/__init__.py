"""Everything that a site without network needs to run a plan, in one folder or archive."""
