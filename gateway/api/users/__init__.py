"""Routes for users: connect wearables, list connections, import data, upload lab reports."""
