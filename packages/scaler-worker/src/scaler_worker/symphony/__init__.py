"""The proxy agent of IBM Spectrum Symphony: its runs are executed as Symphony tasks. It has no worker processes."""
