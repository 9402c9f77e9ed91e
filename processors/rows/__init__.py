"""Rows of workflows (`schemas.workflow_tables`), as they follow from histories."""
