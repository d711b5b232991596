"""The threads of a client and its connection. Imports no graph and no public class."""
