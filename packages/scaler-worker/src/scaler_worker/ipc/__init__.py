"""The formats that agent, template and workers share on one host: frames and shared memory. Imports only settings."""
