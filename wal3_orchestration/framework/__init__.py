"""What a workflow is made of: knows Dagster, and no workflow."""
