#!/bin/sh
# The environment's Python for runtimes that keep the PATH of the host, as Charliecloud does.
exec /opt/venv/bin/python "$@"
