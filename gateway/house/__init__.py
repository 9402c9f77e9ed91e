"""The house's own app: the workflows that come with Headwater, and the program that hosts them."""
