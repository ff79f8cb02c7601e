#!/bin/sh
# Installs the Debian packages of lists (docker/locks/debian-*.txt) and leaves no trace of apt; runs in a build of an image.
#
#   debian.sh LIST...
set -eu
export DEBIAN_FRONTEND=noninteractive
apt-get update -q
sed 's/[[:space:]]*#.*//' "$@" | xargs apt-get install -qy --no-install-recommends
rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/ldconfig/aux-cache /var/log/apt /var/log/*.log
