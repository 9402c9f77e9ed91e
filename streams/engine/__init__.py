"""Owning runs without I/O: what an owner holds of its partition, decides and gives out."""
